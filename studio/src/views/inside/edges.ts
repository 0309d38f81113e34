// The lines beside a list of parts: from each part that is read to the one that reads it.
import type { InsideLevel } from "../../api/types";

export interface Edge {
  readonly from: number;
  readonly to: number;
  readonly path: string; // of an SVG
}

/** An arc for each input; those that span more parts bow further out, so that they can be told apart. */
export function edges(parts: InsideLevel["parts"], rowHeight: number, width: number): Edge[] {
  const middle = (row: number): number => (row + 0.5) * rowHeight;
  return parts.flatMap((part, to) =>
    part.inputs.map((from) => {
      const span = to - from;
      const bow = span === 1 ? 0 : Math.min(width - 4, 8 + 6 * Math.log2(span));
      const [top, bottom, right] = [middle(from) + 4, middle(to) - 4, width];
      const path = span === 1 ? `M${right - 4},${top}V${bottom}` : `M${right},${top}H${right - bow}V${bottom}H${right}`;
      return { from, to, path };
    }),
  );
}
