// The sequential scale of the stylesheet as numbers, for canvases, and as colours for single marks. It follows the theme.

type Color = readonly [red: number, green: number, blue: number];

const STOPS = 5;
const LEVELS = 256;

export class Palette {
  /** The scale from 0 to 1 in 256 steps. */
  scale = $state.raw<readonly Color[]>([]);
  masked = $state.raw<Color>([128, 128, 128]);
  paper = $state.raw<Color>([255, 255, 255]);

  /** Read the scale `--NAME-0` to `--NAME-4` where an element stands; one without a first step begins with the paper.
   *
   * The returned function ends watching the theme.
   */
  watch(element: Element, name: string): () => void {
    const read = (): void => {
      const style = getComputedStyle(element);
      const color = (variable: string): Color => parseHex(style.getPropertyValue(variable) || style.getPropertyValue("--paper"));
      const stops = Array.from({ length: STOPS }, (_, stop) => color(`--${name}-${stop}`));
      this.scale = Array.from({ length: LEVELS }, (_, level) => between(stops, level / (LEVELS - 1)));
      this.masked = color("--masked");
      this.paper = color("--paper");
    };
    const root = element.getRootNode();
    const observer = new MutationObserver(read);
    observer.observe(root instanceof ShadowRoot ? root.host : document.documentElement, { attributes: true });
    read();
    return () => observer.disconnect();
  }

  color(share: number): string {
    return css(this.at(share));
  }

  /** Black or white, whichever can be read on that colour: one of them always has a contrast of 4.5. */
  inkOn(share: number): string {
    const ground = luminance(this.at(share)) + 0.05;
    return 1.05 / ground > ground / 0.05 ? "white" : "black";
  }

  private at(share: number): Color {
    return this.scale[Math.round(share * (LEVELS - 1))] ?? this.paper;
  }
}

function between(stops: readonly Color[], share: number): Color {
  const place = share * (stops.length - 1);
  const lower = stops[Math.floor(place)] ?? [0, 0, 0];
  const upper = stops[Math.ceil(place)] ?? lower;
  const mix = (channel: 0 | 1 | 2): number => lower[channel] + (upper[channel] - lower[channel]) * (place % 1);
  return [mix(0), mix(1), mix(2)];
}

function parseHex(text: string): Color {
  const number = parseInt(text.trim().slice(1), 16) || 0;
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

function css([red, green, blue]: Color): string {
  return `rgb(${Math.round(red)} ${Math.round(green)} ${Math.round(blue)})`;
}

function luminance(color: Color): number {
  const [red, green, blue] = color.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
