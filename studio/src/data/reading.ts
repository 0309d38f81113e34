// The text that a view looks into: the run's own tokens, prompt and answer, or another text.
import type { Recording } from "../api/types";
import { pythonString } from "./snippets";
import { type Steer, steerFields } from "./steering";

/** The fields of a request that name the text and the model that reads it; the run's own tokens are read as steered as they were written. */
export function readingFields(run: Recording, text: string | null, model: string | null, steer: readonly Steer[] = []): Record<string, unknown> {
  if (text !== null) return { model, prompt: text, raw: true };
  return {
    model: run.model,
    prompt: run.prompt_tokens.map((token) => token.id),
    answer_ids: run.steps.map((step) => step.token.id),
    ...steerFields(steer),
  };
}

/** What gives the same in Python: the run, or a text that the model reads. */
export function pythonReading(text: string | null): string {
  return text === null ? "run" : `model.read(${pythonString(text)}, raw=True)`;
}

/** Whether an encoder reads the prompt, and a decoder writes the answer after a start token. */
export function hasEncoder(run: Recording): boolean {
  return run.stages.some((stage) => stage.stack === "encoder.");
}

/** The position whose output chose a token of the answer: the one before it. */
export function positionBefore(run: Recording, token: number): number {
  return answerStart(run) - 1 + token;
}

/** The token of the answer that a position's output chose; null: it chose none. */
export function tokenChosenAt(run: Recording, position: number): number | null {
  const token = position - answerStart(run) + 1;
  return token >= 0 && token < run.steps.length ? token : null;
}

/** Whether some of its blocks choose among experts. */
export function hasExperts(run: Recording): boolean {
  return run.stages.some((stage) => stage.name.endsWith(".mlp.router"));
}

/** The position of the answer's first token among the tokens that the writing stack reads. */
export function answerStart(run: Recording): number {
  return hasEncoder(run) ? 1 : run.prompt_tokens.length;
}
