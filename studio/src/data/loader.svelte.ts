// Data that is asked for while a view is open: being read, there, cancelled, or not to be had.
import { untrack } from "svelte";
import { type SliceRequest, sliceKey, type Source, SourceError } from "./source";

export type LoadState<T> =
  | { readonly kind: "idle" }
  | { readonly kind: "reading" }
  | { readonly kind: "ready"; readonly data: T }
  | { readonly kind: "cancelled" }
  | { readonly kind: "failed"; readonly message: string; readonly retryable: boolean };

type Work<T> = (signal: AbortSignal) => Promise<T>;

const KEPT = 12; // slices of a source, so that going back costs nothing
const answers = new WeakMap<Source, Map<string, unknown>>();

export class Loader<T> {
  state = $state.raw<LoadState<T>>({ kind: "idle" });
  /** The last that was read; it stays while the next is on its way. */
  latest = $state.raw<T | null>(null);
  private abort: AbortController | null = null;
  private work: Work<T> | null = null;
  private key: string | null = null; // of the slice that is being read, or was

  /** What was asked for last, once it is there. */
  get data(): T | null {
    return this.state.kind === "ready" ? this.state.data : null;
  }

  /** Read a part of a run, unless it is the one that was asked for last. */
  async slice(source: Source, request: SliceRequest): Promise<void> {
    const key = sliceKey(request);
    if (key === this.key && untrack(() => this.state.kind) !== "failed") return; // an effect that asks is not run by the answer
    const kept = keptAnswers(source);
    const known = kept.get(key);
    if (known !== undefined) {
      this.clear();
      this.key = key;
      this.finish(known as T);
      return;
    }
    const reading = this.load(async (signal) => {
      const data = await source.slice(request, signal);
      kept.set(key, data);
      if (kept.size > KEPT) kept.delete(kept.keys().next().value ?? "");
      return data as T;
    });
    this.key = key;
    await reading;
  }

  /** Of several calls the last one counts: it ends those before. */
  async load(work: Work<T>): Promise<void> {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.work = work;
    this.key = null;
    this.state = { kind: "reading" };
    try {
      const data = await work(abort.signal);
      if (!abort.signal.aborted) this.finish(data);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.latest = null;
      const message = error instanceof Error ? error.message : String(error);
      this.state = { kind: "failed", message, retryable: error instanceof SourceError && error.kind === "unreachable" };
    }
  }

  /** End what is being read; it can be read again. */
  cancel(): void {
    this.abort?.abort();
    if (this.state.kind === "reading") this.state = { kind: "cancelled" };
  }

  async retry(): Promise<void> {
    const { key, work } = this;
    if (!work) return;
    const reading = this.load(work);
    this.key = key;
    await reading;
  }

  /** Forget what was read, and what is on its way. */
  clear(): void {
    this.abort?.abort();
    this.key = null;
    this.latest = null;
    this.state = { kind: "idle" };
  }

  private finish(data: T): void {
    this.latest = data;
    this.state = { kind: "ready", data };
  }
}

/** Whether a slice was read before, and can be shown without asking for it again. */
export function isKept(source: Source, request: SliceRequest): boolean {
  return keptAnswers(source).has(sliceKey(request));
}

function keptAnswers(source: Source): Map<string, unknown> {
  const kept = answers.get(source) ?? new Map<string, unknown>();
  answers.set(source, kept);
  return kept;
}
