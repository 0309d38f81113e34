// A step's probabilities under any temperature, top-k and top-p, from its stored scores: the best ones one by one, the tail as
// a histogram. The same arithmetic as the engine's rules, over float64.
import type { RecordedStep } from "../api/types";

export interface Sampling {
  readonly temperature: number; // 0: greedy, the best token each time
  readonly topK: number; // 0: all
  readonly topP: number; // 1: all
}

export type Removal = "top_k" | "top_p";

export interface Distribution {
  /** Of each stored candidate after all rules; 0 where it was removed. */
  readonly probabilities: readonly number[];
  /** Which rule removed it. */
  readonly removedBy: readonly (Removal | null)[];
  /** The scores after temperature. */
  readonly scaled: readonly number[];
  /** The probability of all tokens in play that are not stored one by one. */
  readonly others: number;
  /** How many tokens are in play; a lower bound when not exact. */
  readonly inPlay: number;
  readonly exact: boolean;
}

/** Greedy takes the best token, and changes no probability: what is shown then are the model's own. */
const OWN: Sampling = { temperature: 1, topK: 0, topP: 1 };

export function isGreedy({ temperature }: Sampling): boolean {
  return temperature === 0;
}

export function distribution(step: RecordedStep, tailWidth: number, chosen: Sampling): Distribution {
  const sampling = isGreedy(chosen) ? OWN : chosen;
  const scores = step.candidates.scores.map((score) => score ?? -Infinity);
  const best = scores[0] ?? 0;
  const scaled = scores.map((score) => score / sampling.temperature);
  const removedBy: (Removal | null)[] = scores.map(() => null);
  const weights = scores.map((score) => Math.exp((score - best) / sampling.temperature));
  const counts = step.tail?.counts ?? [];
  const tail = tailWeights(counts, (step.tail?.top ?? best) - best, tailWidth, sampling.temperature);

  const listed = scores.length;
  if (sampling.topK > 0) {
    weights.forEach((_, rank) => {
      if (rank >= sampling.topK) remove(weights, removedBy, rank, "top_k");
    });
    keepFirst(tail, counts, sampling.topK - listed);
  }
  let total = sum(weights) + sum(tail);
  let exact = sampling.topK <= listed || sampling.topP === 1;
  if (sampling.topP < 1) {
    let reached = 0;
    let cut = 0; // ranks below it stay: the fewest that reach top-p, and at least one
    while (cut < listed && (cut === 0 || reached < sampling.topP * total)) reached += weights[cut++] ?? 0;
    for (let rank = cut; rank < listed; rank++) {
      if (weights[rank]) remove(weights, removedBy, rank, "top_p");
    }
    let bin = 0;
    while (bin < tail.length && cut === listed && reached < sampling.topP * total) reached += tail[bin++] ?? 0;
    tail.length = bin;
    exact = bin === 0;
    total = sum(weights) + sum(tail);
  }
  const kept = weights.filter((weight) => weight > 0).length;
  return {
    probabilities: weights.map((weight) => weight / total),
    removedBy,
    scaled,
    others: sum(tail) / total,
    inPlay: exact ? inPlay(kept, counts, tail, sampling.topK) : kept,
    exact,
  };
}

/** The listed tokens that are left, and with them the tail's as far as it is in play. */
function inPlay(kept: number, counts: readonly number[], tail: readonly number[], topK: number): number {
  const all = kept + sum(counts.slice(0, tail.length));
  return topK > 0 ? Math.min(topK, all) : all;
}

/** Each bin's share: its count, at the score in its middle. */
function tailWeights(counts: readonly number[], top: number, width: number, temperature: number): number[] {
  return counts.map((count, bin) => count * Math.exp((top - (bin + 0.5) * width) / temperature));
}

/** Only so many tokens of the tail stay in play: whole bins, and a part of the last. */
function keepFirst(tail: number[], counts: readonly number[], most: number): void {
  let left = Math.max(0, most);
  tail.forEach((weight, bin) => {
    const count = counts[bin] ?? 0;
    const kept = Math.min(count, left);
    tail[bin] = count ? (weight * kept) / count : 0;
    left -= kept;
  });
  if (most <= 0) tail.length = 0;
}

function remove(weights: number[], removedBy: (Removal | null)[], rank: number, rule: Removal): void {
  weights[rank] = 0;
  removedBy[rank] ??= rule;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

/** Settings as a request has them. */
export function samplingFields({ temperature, topK, topP }: Sampling): Readonly<Record<string, number>> {
  return { temperature, ...(temperature > 0 ? { top_p: topP, top_k: topK } : {}) };
}

/** Settings in words. */
export function samplingText(sampling: Sampling): string {
  if (isGreedy(sampling)) return "greedy: the best token each time";
  const { temperature, topK, topP } = sampling;
  return `temperature ${temperature}, ${topK ? `top-k ${topK}` : "no top-k"} and top-p ${topP}`;
}

export function sameSampling(first: Sampling, second: Sampling): boolean {
  return first.temperature === second.temperature && first.topK === second.topK && first.topP === second.topP;
}

/** The sampling settings that a run was made with. */
export function samplingOf(settings: Readonly<Record<string, unknown>>): Sampling {
  const number = (name: string, absent: number): number => {
    const value = settings[name];
    return typeof value === "number" ? value : absent;
  };
  return settings["do_sample"] === true
    ? { temperature: number("temperature", 1), topK: number("top_k", 0), topP: number("top_p", 1) }
    : { temperature: 0, topK: 0, topP: 1 };
}
