// The two texts of a patching, and the tokens whose scores are compared.
import type { Patching, Recording } from "../../api/types";

export interface Pair {
  readonly clean: string;
  readonly corrupted: string;
  readonly answer: string; // empty: the clean text's best token
  readonly against: string; // empty: the corrupted text's best token
}

export type PatchPart = Extract<Patching["part"], "residual" | "attention" | "recurrent" | "mlp">;

const PARTS: readonly { value: PatchPart; label: string; title: string }[] = [
  { value: "residual", label: "residual", title: "The residual stream after each block" },
  { value: "attention", label: "attention", title: "What each block's attention adds to the stream" },
  { value: "recurrent", label: "state", title: "What each block's state adds to the stream, beside attention" },
  { value: "mlp", label: "MLP", title: "What each block's MLP adds to the stream" },
];

/** The parts that the model of a run has. */
export function partsOf(run: Recording): typeof PARTS {
  const besideAttention = run.stages.some(({ name }) => name.endsWith("recurrent.update"));
  return PARTS.filter(({ value }) => value !== "recurrent" || besideAttention);
}

export const EXAMPLE: Pair = {
  clean: "When John and Mary went to the shop, John gave a book to",
  corrupted: "When John and Mary went to the shop, Mary gave a book to",
  answer: " Mary",
  against: " John",
};

/** As it stands in an address: a line for each part. */
export function toText({ clean, corrupted, answer, against }: Pair): string {
  return [clean, corrupted, answer, against].join("\n");
}

export function fromText(text: string): Pair {
  const [clean = "", corrupted = "", answer = "", against = ""] = text.split("\n");
  return { clean, corrupted, answer, against };
}

export function patchFields(pair: Pair, part: PatchPart): Record<string, unknown> {
  return {
    first: pair.clean,
    second: pair.corrupted,
    part,
    raw: true,
    ...(pair.answer ? { answer: pair.answer } : {}),
    ...(pair.against ? { against: pair.against } : {}),
  };
}

/** +42 %, with its sign. */
export function signed(value: number): string {
  const rounded = Math.round(100 * value);
  return `${rounded > 0 ? "+" : rounded < 0 ? "−" : ""}${Math.abs(rounded)} %`;
}

/** A difference of scores. */
export function score(difference: number | null | undefined): string {
  return (difference ?? 0).toFixed(2).replace("-", "−");
}

const STEPS = [0.02, 0.1, 0.3, 0.6];

/** A value as one of nine steps of colour, from zero to both sides. */
export function step(value: number): string {
  const size = STEPS.filter((bound) => Math.abs(value) >= bound).length;
  return size ? `${value > 0 ? "positive" : "negative"}-${size}` : "";
}
