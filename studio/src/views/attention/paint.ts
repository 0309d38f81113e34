// Attention maps as pixels: unsmoothed, and where a pixel stands for several cells, the strongest of them.
import type { Palette } from "../../data/palette.svelte";
import type { Display } from "./maps";

const HATCH = 4; // pixels from one stroke to the next

export interface PaintedMap {
  readonly rows: number;
  readonly columns: number;
  /** From 0 to 255; negative: masked. */
  byte(row: number, column: number): number;
}

/** One map into a part of an image, `width` × `height` pixels from a corner on. */
export function paintMap(
  image: ImageData,
  map: PaintedMap,
  { left, top, width, height }: { left: number; top: number; width: number; height: number },
  palette: Palette,
  display: Display,
): void {
  const levels = Array.from({ length: 256 }, (_, byte) => Math.round(255 * (byte / 255) ** display.gamma));
  const columns = ranges(width, map.columns);
  ranges(height, map.rows).forEach(([rowStart, rowEnd], y) => {
    columns.forEach(([columnStart, columnEnd], x) => {
      let most = -1;
      for (let row = rowStart; row < rowEnd; row++) {
        for (let column = columnStart; column < columnEnd; column++) {
          if (!(display.hideFirst && column === 0)) most = Math.max(most, map.byte(row, column));
        }
      }
      const hatched = (x + y) % HATCH === 0 ? palette.masked : palette.paper;
      const color = most < 0 ? hatched : (palette.scale[levels[most] ?? 0] ?? palette.paper);
      const at = 4 * ((top + y) * image.width + left + x);
      image.data[at] = color[0];
      image.data[at + 1] = color[1];
      image.data[at + 2] = color[2];
      image.data[at + 3] = 255;
    });
  });
}

/** Which cells each of some pixels stands for. */
function ranges(pixels: number, cells: number): [start: number, end: number][] {
  return Array.from({ length: pixels }, (_, pixel) => {
    const start = Math.floor((pixel * cells) / pixels);
    return [start, Math.max(start + 1, Math.floor(((pixel + 1) * cells) / pixels))];
  });
}
