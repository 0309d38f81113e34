// The page's state: the run that is shown, what is selected in it, and what happens at the moment.
import type { Recording, RecordRequest } from "../api/types";
import { type Sampling, samplingOf } from "./distribution";
import { fromFragment, NOTHING, type Selection, toFragment } from "./selection";
import { type Source, SourceError } from "./source";

export type Activity =
  | { readonly kind: "idle" }
  | { readonly kind: "generating"; readonly abort: AbortController }
  | { readonly kind: "failed"; readonly message: string; readonly keyNeeded: boolean };

type Message = { role: "user" | "assistant"; content: string };

const MAX_TOKENS = 128; // of one answer

export class Studio {
  run = $state.raw<Recording | null>(null);
  selection = $state.raw<Selection>(NOTHING);
  sampling = $state.raw<Sampling>({ temperature: 1, topK: 0, topP: 1 });
  activity = $state.raw<Activity>({ kind: "idle" });
  models = $state.raw<readonly string[]>([]);
  model = $state.raw<string | null>(null); // that the next text is asked of; null: the server's first
  raw = $state.raw(false); // without the chat template
  private conversation: readonly Message[] = []; // what was asked and answered on this page

  constructor(readonly source: Source) {}

  get step() {
    return this.selection.token === null ? null : (this.run?.steps[this.selection.token] ?? null);
  }

  /** Whether the sliders stand elsewhere than in the run. */
  get reshaped(): boolean {
    if (!this.run) return false;
    const own = samplingOf(this.run.settings);
    return own.temperature !== this.sampling.temperature || own.topP !== this.sampling.topP;
  }

  /** Show the first run, at the place that the address names. */
  async open(fragment: string): Promise<void> {
    await this.attempt(async () => this.show(await this.source.run(), fromFragment(fragment)));
    try {
      this.models = (await this.source.models?.()) ?? [];
    } catch {
      this.models = []; // the list is a convenience; asking for a text says what is wrong
    }
  }

  show(run: Recording, selection: Selection = NOTHING): void {
    this.run = run;
    this.sampling = samplingOf(run.settings);
    this.selection = placeIn(run, selection);
  }

  /** Select something; `visit`: as a step that the browser's Back takes back. */
  select(change: Partial<Selection>, { visit = false } = {}): void {
    const token = change.token ?? this.selection.token;
    const moved = token === this.selection.token ? {} : { cell: null, position: null }; // another step has other candidates
    this.selection = { ...this.selection, ...moved, ...change };
    const address = `#${toFragment(this.selection)}`;
    if (visit) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }

  /** Go to the place that the address names, in the run that is shown. */
  follow(fragment: string): void {
    if (this.run) this.selection = placeIn(this.run, fromFragment(fragment));
  }

  /** Restore what the run was made with. */
  resetSampling(): void {
    if (this.run) this.sampling = samplingOf(this.run.settings);
  }

  /** Ask the model; in a chat, after what was said before. */
  async ask(text: string): Promise<void> {
    const { generate } = this.source;
    if (!generate) return;
    const messages: readonly Message[] = [...this.conversation, { role: "user", content: text }];
    const request = {
      model: this.model,
      prompt: this.raw ? text : messages,
      raw: this.raw,
      max_tokens: MAX_TOKENS,
      ...(this.sampling.temperature > 0 ? { top_p: this.sampling.topP } : {}),
      temperature: this.sampling.temperature,
    } as RecordRequest;
    const abort = new AbortController();
    this.activity = { kind: "generating", abort };
    await this.attempt(async () => {
      const run = await generate.call(this.source, request, abort.signal);
      this.conversation = this.raw ? [] : [...messages, { role: "assistant", content: run.text }];
      this.show(run);
    }, abort.signal);
  }

  stop(): void {
    if (this.activity.kind === "generating") this.activity.abort.abort();
  }

  /** Do something that can fail; what failed is said, and everything else stays as it is. */
  private async attempt(work: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    try {
      await work();
      this.activity = { kind: "idle" };
    } catch (error) {
      if (signal?.aborted) {
        this.activity = { kind: "idle" };
        return;
      }
      const message = error instanceof Error ? error.message : String(error);
      this.activity = { kind: "failed", message, keyNeeded: error instanceof SourceError && error.kind === "key needed" };
    }
  }
}

/** A selection with a token that the run has. */
function placeIn(run: Recording, selection: Selection): Selection {
  const inside = selection.token !== null && selection.token < run.steps.length;
  return inside ? selection : { ...selection, token: mostSurprising(run), cell: null };
}

/** The step to look at first: where the model expected the chosen token least. */
function mostSurprising(run: Recording): number | null {
  let most = -1;
  run.steps.forEach((step, number) => {
    if (most < 0 || (step.surprisal ?? 0) > (run.steps[most]?.surprisal ?? 0)) most = number;
  });
  return most < 0 ? null : most;
}
