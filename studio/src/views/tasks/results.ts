// A task's answers, as the pipelines give them, in the form that they are drawn in.
import type { Bar } from "../../data/bars";


export interface Span {
  readonly start: number;
  readonly end: number;
  readonly label: string;
  readonly value: number; // its probability
}

/** A piece of a text, with the span that it is in. */
export interface Piece {
  readonly text: string;
  readonly span: Span | null;
}

type Fields = Readonly<Record<string, unknown>>;

function fieldsOf(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [value];
}

function numberAt(fields: Fields, name: string): number {
  return typeof fields[name] === "number" ? fields[name] : 0;
}

function textAt(fields: Fields, name: string): string {
  return typeof fields[name] === "string" ? fields[name] : "";
}

export function labels(output: unknown): Bar[] {
  return listOf(output).map(fieldsOf).map((entry) => ({ label: textAt(entry, "label"), value: numberAt(entry, "score") }));
}

/** The candidates of each gap: one list for one gap, a list of lists for several. */
export function gaps(output: unknown): Bar[][] {
  const list = listOf(output);
  const lists = Array.isArray(list[0]) ? list : [list];
  return lists.map((candidates) =>
    listOf(candidates).map(fieldsOf).map((entry) => ({ label: textAt(entry, "token_str"), value: numberAt(entry, "score") })),
  );
}

export function spans(output: unknown): Span[] {
  return listOf(output)
    .map(fieldsOf)
    .filter((entry) => typeof entry["start"] === "number")
    .map((entry) => ({
      start: numberAt(entry, "start"),
      end: numberAt(entry, "end"),
      label: textAt(entry, "entity_group") || textAt(entry, "answer"),
      value: numberAt(entry, "score"),
    }));
}

export function writtenText(output: unknown): string {
  return textAt(fieldsOf(listOf(output)[0]), "generated_text");
}

/** A text cut at its spans, which count code points; of spans that overlap the first counts. */
export function cutAtSpans(text: string, marked: readonly Span[]): Piece[] {
  const letters = Array.from(text);
  const pieces: Piece[] = [];
  let at = 0;
  for (const span of [...marked].sort((one, other) => one.start - other.start)) {
    if (span.start < at || span.end <= span.start) continue;
    if (span.start > at) pieces.push({ text: letters.slice(at, span.start).join(""), span: null });
    pieces.push({ text: letters.slice(span.start, span.end).join(""), span });
    at = span.end;
  }
  if (at < letters.length) pieces.push({ text: letters.slice(at).join(""), span: null });
  return pieces;
}
