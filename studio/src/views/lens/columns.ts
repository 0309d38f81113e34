// The lens's columns: one for each token that the model could have predicted, from the recording or read on demand.
import type { Lens, Recording } from "../../api/types";
import { hasEncoder, positionBefore } from "../../data/reading";

export interface LensCell {
  readonly text: string;
  readonly probability: number;
  readonly rank: number | null; // of the last layer's prediction
  readonly entropy: number | null; // in bits
}

export interface LensColumn {
  readonly token: string; // that stands there
  readonly position: number; // whose output predicts it
  readonly step: number | null; // of the answer; null: in the prompt
  readonly cells: readonly LensCell[] | null; // by layer; null: not read yet
}

/** What was recorded of the answer's tokens. */
export function answerColumns(run: Recording): LensColumn[] {
  return run.steps.map((step, number) => {
    const { lens } = step;
    const cells = lens?.texts.map((text, layer) => ({
      text,
      probability: lens.probabilities[layer] ?? 0,
      rank: lens.ranks?.[layer] ?? null,
      entropy: lens.entropies?.[layer] ?? null,
    }));
    return { token: step.token.text, position: positionBefore(run, number), step: number, cells: cells ?? null };
  });
}

/** The prompt's tokens but the first, which nothing stands before; an encoder's input is not predicted. */
export function promptColumns(run: Recording, read: ReadonlyMap<number, readonly LensCell[]>): LensColumn[] {
  if (hasEncoder(run)) return [];
  return run.prompt_tokens.slice(1).map((token, position) => ({
    token: token.text,
    position,
    step: null,
    cells: read.get(position) ?? null,
  }));
}

export function cellsByPosition(lens: Lens): [number, LensCell[]][] {
  return lens.positions.map((position, column) => [
    position,
    lens.predictions.map((layer) => {
      const prediction = layer[column];
      return {
        text: prediction?.text ?? "",
        probability: prediction?.probability ?? 0,
        rank: prediction?.rank ?? null,
        entropy: prediction?.entropy ?? null,
      };
    }),
  ]);
}
