// The branches of an answer as a tree of segments: a run of tokens that no branch leaves, and what follows it.
import type { RecordedStep } from "../../api/types";
import type { Branch } from "../../data/conversation";

export interface Segment {
  readonly branch: number; // the branch that these steps were written for
  readonly first: number; // the number of its first step in the answer
  readonly steps: readonly RecordedStep[];
  readonly followers: readonly Segment[];
}

/** A branch from one of its steps on, with those that leave it later. */
function segmentsFrom(branches: readonly Branch[], branch: number, first: number): Segment {
  const steps = branches[branch]?.run.steps ?? [];
  const leaving = branches.flatMap(({ parent, at }, number) => (parent === branch && at > first ? [{ number, at }] : []));
  const parting = Math.min(steps.length, ...leaving.map(({ at }) => at));
  const others = leaving.filter(({ at }) => at === parting).map(({ number }) => segmentsFrom(branches, number, parting));
  const followers = parting < steps.length ? [segmentsFrom(branches, branch, parting), ...others] : others;
  return { branch, first, steps: steps.slice(first, parting), followers };
}

/** The segments that an answer begins with: more than one where branches leave it at its first token. */
export function rootSegments(branches: readonly Branch[]): Segment[] {
  const others = branches.flatMap(({ parent, at }, number) => (parent !== null && at === 0 ? [segmentsFrom(branches, number, 0)] : []));
  return branches.length ? [segmentsFrom(branches, 0, 0), ...others] : [];
}

/** The probability that the model gave a chosen token. */
export function probability(step: RecordedStep): number {
  return 2 ** -(step.surprisal ?? 0);
}
