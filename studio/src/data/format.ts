// Numbers and tokens as people read them.
import type { RecordedStep, Stage } from "../api/types";

/** A share as percent: 42 %, 3.1 %, 0.4 %, 0.02 %. */
export function percent(share: number): string {
  const hundredth = 100 * share;
  if (hundredth === 0) return "0 %";
  if (hundredth >= 99.95 && share < 1) return "99.9 %";
  if (hundredth >= 9.95) return `${hundredth.toFixed(0)} %`;
  if (hundredth >= 0.095) return `${hundredth.toFixed(1)} %`;
  return hundredth >= 0.001 ? `${Number(hundredth.toPrecision(1))} %` : "<0.001 %";
}

// Control characters, spaces other than the usual one, and what turns the direction of a line.
const INVISIBLE = /[\u0000-\u001f\u007f-\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff]/g;

/** Invisible characters as \u202e, which JSON, Python and a shell's $'…' understand. */
export function escapeInvisible(text: string, except = ""): string {
  return text.replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0).toString(16).padStart(4, "0");
    return except.includes(character) ? character : `\\u${code}`;
  });
}

/** A token's text with what cannot be seen made visible. */
export function visible(text: string): string {
  if (text === "") return "∅";
  return escapeInvisible(text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
}

export function bits(number: number): string {
  return `${number.toFixed(1)} bits`;
}

/** Where the model ranked the chosen token: 1 is its first choice. */
export function rank(step: RecordedStep): string {
  return step.rank === null ? `≥ ${step.candidates.ids.length}` : String(step.rank);
}

/** A rule as people write it: top-p. */
export function ruleName(rule: string): string {
  return rule.replaceAll("_", "-");
}

const NUMBERS = new Intl.NumberFormat("en-US"); // made once: grids write hundreds of numbers in a frame

export function count(number: number): string {
  return NUMBERS.format(number);
}

/** A tensor's shape, 1×34×576; of a text its length. */
export function shape(stage: Pick<Stage, "shape" | "dtype" | "name">): string {
  const dimensions = stage.shape.map(count).join("×");
  return stage.name === "text" ? `${dimensions} characters` : dimensions;
}

const STEPS = [1, 3, 6, 10]; // in bits

/** A surprisal as one of five steps, 0 to 4: below 1, 3, 6, 10 bits, and above. */
export function surprisalStep(surprisal: number): number {
  return STEPS.filter((step) => surprisal >= step).length;
}
