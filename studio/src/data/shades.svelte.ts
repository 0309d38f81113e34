// Numbers from -1 to 1 as shades, with a colour for each sign.
import { Palette } from "./palette.svelte";

export class Shades {
  private readonly positive = new Palette();
  private readonly negative = new Palette();

  /** Read the colours where an element stands; the returned function ends watching the theme. */
  watch(element: Element): () => void {
    const ends = [this.positive.watch(element, "positive"), this.negative.watch(element, "negative")];
    return () => ends.forEach((end) => end());
  }

  color(value: number): string {
    return this.palette(value).color(strength(value));
  }

  /** What can be read on that shade. */
  ink(value: number): string {
    return this.palette(value).inkOn(strength(value));
  }

  private palette(value: number): Palette {
    return value < 0 ? this.negative : this.positive;
  }
}

/** What is beyond ±1 is clipped. */
function strength(value: number): number {
  return Math.min(1, Math.abs(value));
}
