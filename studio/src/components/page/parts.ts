// A page's parts as the components take them.
import type { PageLineChart, PageTable } from "../../api/types";
import type { ChartLine } from "../../data/chart";

export type PageCell = PageTable["rows"][number]["cells"][number];

/** The lines of a chart, without the points that are no numbers. */
export function chartLines({ lines }: PageLineChart): ChartLine[] {
  return lines.map(({ name, points, marked }) => ({
    name,
    marked,
    points: points.flatMap(([x, y]) => (x === null || y === null ? [] : [{ x, y }])),
  }));
}

interface Piece {
  readonly text: string;
  readonly marked: boolean;
}

/** A text in pieces, of which those are marked that are among some others; of two the longer one. */
export function highlighted(text: string, highlights: readonly string[]): Piece[] {
  const longest = [...highlights].filter(Boolean).sort((one, other) => other.length - one.length);
  if (!longest.length) return [{ text, marked: false }];
  const pattern = longest.map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  return text.split(new RegExp(`(${pattern})`)).map((piece, number) => ({ text: piece, marked: number % 2 === 1 }));
}

export function cellText(cell: PageCell): string {
  return cell === null ? "" : typeof cell === "object" ? cell.text : String(cell);
}
