// A conversation: its turns, and of each turn the answers that were tried. Branch A is the first answer; each further one
// leaves another at some token, and goes on from a different candidate there.
import type { RecordedLens, RecordedStep, Recording } from "../api/types";
import { type Sampling, samplingOf } from "./distribution";
import type { Steer } from "./steering";

/** What was asked, and everything that is needed to ask it again. */
export interface Question {
  readonly text: string;
  readonly model: string | null; // null: the server's first
  readonly raw: boolean; // without the chat template
  readonly thinking: boolean | null; // null: the template knows nothing of it
  readonly sampling: Sampling | null; // null: the model's own settings
  readonly seed: number | null; // null: drawn by the server
  readonly maxTokens: number | null; // null: likewise
  readonly steer: readonly Steer[];
}

export type BranchState =
  | { readonly kind: "writing" }
  | { readonly kind: "whole" }
  | { readonly kind: "stopped" }
  | { readonly kind: "cut off"; readonly reason: string };

export interface Branch {
  readonly key: number; // which no other branch of the page has
  readonly parent: number | null; // the number of the branch that it leaves; null: of none
  readonly at: number; // the number of the first step of its own
  readonly forced: readonly number[]; // the ids that it begins with, which were chosen by hand
  readonly run: Recording; // the whole answer, with the steps that it shares
  readonly ends: readonly number[]; // how long it was each time that its writing was stopped or cut off
  readonly written: Recording; // how the server wrote the last part of it: what came before is in the prompt
  readonly state: BranchState;
}

export interface Turn {
  readonly question: Question | null; // null: a run that was opened, not asked for
  readonly branches: readonly Branch[];
  readonly chosen: number; // the branch that the conversation went on from
}

export interface Message {
  readonly role: "user" | "assistant";
  readonly content: string;
}

/** A, B, … Z, then A2, B2, … */
export function branchName(number: number): string {
  const letter = String.fromCharCode(65 + (number % 26));
  return number < 26 ? letter : `${letter}${1 + Math.floor(number / 26)}`;
}

/** The branch that a step of a branch was written for: its own, or one that it shares the step with. */
export function ownerOf(branches: readonly Branch[], branch: number, step: number): number {
  let owner = branch;
  for (let next = branches[owner]; next && next.parent !== null && step < next.at; next = branches[owner]) owner = next.parent;
  return owner;
}

/** The branch that begins as this one does up to a step, and goes on with certain ids; null: there is none. */
export function branchWith(branches: readonly Branch[], branch: number, step: number, ids: readonly number[]): number | null {
  const path = [...(branches[branch]?.run.steps.slice(0, step).map(({ token }) => token.id) ?? []), ...ids];
  const number = branches.findIndex(({ run }) => path.every((id, at) => run.steps[at]?.token.id === id));
  return number < 0 ? null : number;
}

/** The step that would have been, had a certain candidate been chosen; null where it was not recorded as one. */
export function otherChoice(step: RecordedStep, id: number, ends: boolean): RecordedStep | null {
  const { ids, texts, scores } = step.candidates;
  const place = ids.indexOf(id);
  const score = scores[place] ?? null;
  const chosenScore = scores[ids.indexOf(step.token.id)] ?? null;
  if (place < 0 || score === null || chosenScore === null) return null;
  const text = texts[place] ?? "";
  return {
    ...step,
    token: { ...step.token, id, token: text, text, special: ends },
    surprisal: (step.surprisal ?? 0) + (chosenScore - score) / Math.LN2, // scores are log-probabilities but for a constant
    rank: place + 1,
    draw: null, // it was chosen by hand
    finish: ends ? "eos" : null,
  };
}

/** The ids of a run's prompt, and of so many steps of its answer. */
export function idsUpTo(run: Recording, steps: number): number[] {
  return [...run.prompt_tokens.map((token) => token.id), ...run.steps.slice(0, steps).map((step) => step.token.id)];
}

/** The step to look at first: where the model expected the chosen token least. */
export function mostSurprising(run: Recording): number | null {
  let most = -1;
  run.steps.forEach((step, number) => {
    if (most < 0 || (step.surprisal ?? 0) > (run.steps[most]?.surprisal ?? 0)) most = number;
  });
  return most < 0 ? null : most;
}

/** How many tokens two answers begin with in common. */
export function commonSteps(first: Recording, second: Recording): number {
  const parting = first.steps.findIndex(({ token }, number) => token.id !== second.steps[number]?.token.id);
  return parting < 0 ? first.steps.length : parting;
}

/** Whether a run is of an encoder-decoder: its answer is not read after its prompt. */
export function isEncoderDecoder(run: Recording): boolean {
  return run.stages.some((stage) => stage.name === "start");
}

export function endsText(run: Recording, id: number): boolean {
  const ends = run.settings["eos_token_id"];
  return Array.isArray(ends) ? ends.includes(id) : ends === id;
}

export function withLens(run: Recording, first: number, lenses: readonly RecordedLens[]): Recording {
  const steps = run.steps.map((step, number) => {
    const lens = lenses[number - first];
    return lens ? { ...step, lens } : step;
  });
  return { ...run, steps };
}

/** What was said so far, as the chat template takes it. */
export function messagesOf(turns: readonly Turn[]): Message[] {
  return turns.flatMap(({ question, branches, chosen }) =>
    question === null || question.raw
      ? []
      : [
          { role: "user" as const, content: question.text },
          { role: "assistant" as const, content: branches[chosen]?.run.text ?? "" },
        ],
  );
}

/** How many tokens of a turn's prompt stand at the end of the turn before it already, in the same places. */
export function sharedTokens(turns: readonly Turn[], number: number): number {
  const before = turns[number - 1];
  const last = before?.branches[before.chosen]?.run;
  const prompt = turns[number]?.branches[0]?.run.prompt_tokens ?? [];
  if (!last) return 0;
  const ids = idsUpTo(last, last.steps.length);
  const parting = prompt.findIndex((token, place) => token.id !== ids[place]);
  return parting < 0 ? prompt.length : parting;
}

// Links -------------------------------------------------------------------------------------------------------------------
// A link holds what was asked, not what was answered: the model writes it again, with the same seed, to the same tokens.

export interface BranchLink {
  readonly parent: number | null;
  readonly at: number;
  readonly ids: readonly number[]; // that it begins with
  readonly lengths: readonly (number | null)[]; // up to which it is written, one time after the other; null: to its end
}

export interface TurnLink {
  readonly question: Question | null;
  readonly branches: readonly BranchLink[];
  readonly chosen: number;
}

/** What leads to these turns; null where they are no more than the run that a page opens with. */
export function toLink(turns: readonly Turn[]): string | null {
  const links = turns.map(({ question, branches, chosen }) => [
    question && questionLink(question, branches[0]?.run ?? null),
    branches.map((branch) => [branch.parent, branch.at, branch.forced, lengthsOf(branch)]),
    chosen,
  ]);
  return turns.some(({ question, branches }) => question || branches.length > 1) ? JSON.stringify(links) : null;
}

/** With what its answer was written with, where the question left that to the model. */
function questionLink({ text, model, raw, thinking, sampling, maxTokens, steer }: Question, answer: Recording | null): unknown[] {
  const { temperature, topK, topP } = sampling ?? samplingOf(answer?.settings ?? {});
  const most = maxTokens ?? answer?.settings["max_new_tokens"] ?? null;
  const steered = steer.length ? [steer.map(({ name, strength }) => [name, strength])] : [];
  return [text, model, raw, thinking, temperature, topP, answer?.seed ?? null, most, topK, ...steered];
}

/** An answer that was stopped is as long the next time; draws begin anew wherever it was gone on with. */
function lengthsOf({ ends, run }: Branch): (number | null)[] {
  return ends.at(-1) === run.steps.length ? [...ends] : [...ends, null];
}

/** Read from an address; null where it makes no sense. */
export function fromLink(text: string | null): TurnLink[] | null {
  if (text === null) return null;
  try {
    return (JSON.parse(text) as [unknown[] | null, unknown[][], unknown][]).map(([question, branches, chosen]) => ({
      question: question && toQuestion(question),
      branches: branches.map(([parent, at, ids, lengths]) => ({
        parent: parent === null ? null : count(parent),
        at: count(at),
        ids: (ids as unknown[]).map(count),
        lengths: (lengths as unknown[]).map((length) => (length === null ? null : count(length))),
      })),
      chosen: count(chosen),
    }));
  } catch {
    return null;
  }
}

function toQuestion([text, model, raw, thinking, temperature, topP, seed, maxTokens, topK = 0, steer = []]: unknown[]): Question {
  return {
    text: string(text),
    model: model === null ? null : string(model),
    raw: raw === true,
    thinking: typeof thinking === "boolean" ? thinking : null,
    sampling: { temperature: number(temperature, 0, 100), topK: count(topK), topP: number(topP, 0, 1) },
    seed: seed === null ? null : count(seed),
    maxTokens: maxTokens === null ? null : Math.max(1, count(maxTokens)),
    steer: (steer as unknown[][]).map(([name, strength]) => ({ name: string(name), strength: number(strength, -1000, 1000) })),
  };
}

function string(value: unknown): string {
  if (typeof value !== "string" || !value) throw new TypeError("no text");
  return value;
}

function number(value: unknown, least: number, most: number): number {
  if (typeof value !== "number" || !(value >= least && value <= most)) throw new TypeError("no such number");
  return value;
}

function count(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw new TypeError("no whole number");
  return value as number;
}
