// A part of a run that is read on demand: what it is, that it is being read, or why there is none.
import { sliceKey } from "./embedded-source";
import type { SliceRequest, Source } from "./source";

export type SliceState<T> =
  | { readonly kind: "reading" }
  | { readonly kind: "ready"; readonly data: T }
  | { readonly kind: "failed"; readonly message: string };

const KEPT = 12; // answers of a source, so that going back costs nothing
const answers = new WeakMap<Source, Map<string, unknown>>();

export class Slice<T> {
  state = $state.raw<SliceState<T>>({ kind: "reading" });
  private key = "";

  constructor(private readonly source: Source) {}

  get data(): T | null {
    return this.state.kind === "ready" ? this.state.data : null;
  }

  /** Read another part; an answer that comes after a later question is dropped. */
  async load(request: SliceRequest): Promise<void> {
    const key = sliceKey(request);
    if (key === this.key && this.state.kind !== "failed") return;
    this.key = key;
    const kept = keptAnswers(this.source);
    const known = kept.get(key);
    if (known !== undefined) {
      this.state = { kind: "ready", data: known as T };
      return;
    }
    this.state = { kind: "reading" };
    let state: SliceState<T>;
    try {
      const data = await this.source.slice(request);
      kept.set(key, data);
      if (kept.size > KEPT) kept.delete(kept.keys().next().value ?? "");
      state = { kind: "ready", data: data as T };
    } catch (error) {
      state = { kind: "failed", message: error instanceof Error ? error.message : String(error) };
    }
    if (key === this.key) this.state = state;
  }
}

function keptAnswers(source: Source): Map<string, unknown> {
  const kept = answers.get(source) ?? new Map<string, unknown>();
  answers.set(source, kept);
  return kept;
}
