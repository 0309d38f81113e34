// Where a diagram's boxes and edges stand, as in glassformer/page/diagram.py: the boxes of a column right-aligned in their lanes, and
// beside them a track for each edge that leaves one of them, on which it goes upwards.
import type { PageDiagram } from "../../api/types";

const LETTER = 6.6;
export const BOX_HEIGHT = 30;
const LANE = 44;
const GAP = 8;
const TRACK_GAP = 2.5;
const TURN = 6;
const WIDEST = 10;
const THINNEST = 0.6;
const NAMES = 24; // the height of the columns' names
export const MAX_LABEL = 16; // letters of a column's name

export interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
}

export interface DiagramLayout {
  readonly boxes: readonly Box[];
  readonly paths: readonly string[]; // of the edges
  readonly middles: readonly number[]; // of the columns
  readonly lanes: readonly number[]; // the bottom of each
  readonly width: number;
  readonly height: number;
}

export function edgeWidth(value: number | null): number {
  return Math.max(THINNEST, Math.min(1, Math.abs(value ?? 0)) * WIDEST);
}

export function nodeName({ nodes, lanes, columns }: PageDiagram, index: number): string {
  const node = nodes[index];
  return node ? `${lanes[node.lane] ?? ""} ${node.label} at ${columns[node.column] ?? ""}`.trim() : "";
}

export function diagramLayout(diagram: PageDiagram): DiagramLayout {
  const { nodes, edges, columns, lanes } = diagram;
  const entered = new Set(edges.map(({ target }) => target));
  const left = new Set(edges.map(({ source }) => source));
  const isEnd = (index: number): boolean => entered.has(index) && !left.has(index);
  const indices = nodes.map((_, index) => index);
  const top = (lane: number): number => (lanes.length - 1 - lane) * LANE + (LANE - BOX_HEIGHT) / 2;
  const widths = nodes.map(({ label, note }) => LETTER * Math.max(label.length, note.length, 3) + 12);
  const laneOf = (edge: number): number => nodes[edges[edge]?.source ?? 0]?.lane ?? 0;
  const boxes: Box[] = [];
  const tracks: number[] = [];
  const middles: number[] = [];
  let x = LETTER * Math.max(0, ...lanes.map((name) => name.length)) + 3 * GAP;

  columns.forEach((name, column) => {
    const inside = indices.filter((index) => nodes[index]?.column === column && !isEnd(index));
    const rows = lanes.map((_, lane) => inside.filter((index) => nodes[index]?.lane === lane));
    const spans = rows.map((row) => row.reduce((sum, index) => sum + (widths[index] ?? 0) + GAP, -GAP));
    let right = x + Math.max(LETTER * Math.min(name.length, MAX_LABEL), 0, ...spans);
    middles.push((x + right) / 2);
    rows.forEach((row, lane) => {
      const worth = (index: number): number => Math.abs(nodes[index]?.value ?? 0);
      row.sort((one, other) => Number(entered.has(one)) - Number(entered.has(other)) || worth(other) - worth(one));
      row.reduce((end, index) => {
        const width = widths[index] ?? 0;
        boxes[index] = { left: end - width, top: top(lane), width };
        return end - width - GAP;
      }, right);
    });
    const leaving = edges.flatMap(({ source }, index) => (nodes[source]?.column === column ? [index] : []));
    const toEnd = (edge: number): number => Number(isEnd(edges[edge]?.target ?? -1));
    leaving.sort((one, other) => toEnd(one) - toEnd(other) || laneOf(other) - laneOf(one));
    right += 2 * GAP;
    const starts = new Map<number, number>();
    for (const index of leaving) {
      const edge = edges[index];
      if (!edge) continue;
      if (!starts.has(edge.target)) starts.set(edge.target, right);
      tracks[index] = right + edgeWidth(edge.value) / 2;
      right += edgeWidth(edge.value) + TRACK_GAP;
    }
    let end = right;
    for (const index of indices.filter((index) => isEnd(index) && nodes[index]?.column === column)) {
      const start = starts.get(index) ?? right;
      const width = Math.max(widths[index] ?? 0, right - start + 2 * GAP);
      boxes[index] = { left: start - GAP, top: top(nodes[index]?.lane ?? 0), width };
      end = Math.max(end, start - GAP + width);
    }
    x = end + 2 * GAP;
  });

  /** How far from a box's middle an edge leaves or enters it, of several. */
  function offset(index: number, among: readonly number[]): number {
    const order = [...among].sort((one, other) => (tracks[one] ?? 0) - (tracks[other] ?? 0));
    const step = Math.min(WIDEST, (BOX_HEIGHT - WIDEST) / Math.max(1, order.length - 1));
    return step * (order.indexOf(index) - (order.length - 1) / 2);
  }

  const numbers = edges.map((_, index) => index);
  const paths = edges.map(({ source, target }, index) => {
    const [from, to, track] = [boxes[source], boxes[target], tracks[index] ?? 0];
    const [start, end] = [nodes[source], nodes[target]];
    if (!from || !to || !start || !end) return "";
    const leaving = numbers.filter((other) => {
      const node = nodes[edges[other]?.source ?? -1];
      return node?.lane === start.lane && node.column === start.column;
    });
    const y = from.top + BOX_HEIGHT / 2 + offset(index, leaving);
    const path = `M${from.left + from.width} ${y}H${track - TURN}Q${track} ${y} ${track} ${y - TURN}`;
    if (isEnd(target) && start.column === end.column) return `${path}V${to.top + BOX_HEIGHT}`;
    const isLeft = (other: number): boolean => (tracks[other] ?? 0) < to.left;
    const others = numbers.filter((other) => edges[other]?.target === target && isLeft(other) === isLeft(index));
    const height = to.top + BOX_HEIGHT / 2 + offset(index, others);
    const [side, turn] = isLeft(index) ? [to.left, TURN] : [to.left + to.width, -TURN];
    return `${path}V${height + TURN}Q${track} ${height} ${track + turn} ${height}H${side}`;
  });
  const height = LANE * lanes.length + NAMES;
  return { boxes, paths, middles, lanes: lanes.map((_, lane) => height - NAMES - LANE * lane), width: x, height };
}
