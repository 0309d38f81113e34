// The page's state: the conversation, the branch of it that is shown, what is selected there, and what happens at the moment.
import type { DescribedModel, Lens, RecordedLens, Recording, RecordRequest } from "../api/types";
import type { Address } from "./address";
import {
  type Branch,
  type BranchLink,
  type BranchState,
  branchWith,
  commonSteps,
  endsText,
  fromLink,
  idsUpTo,
  isEncoderDecoder,
  messagesOf,
  mostSurprising,
  otherChoice,
  ownerOf,
  type Question,
  toLink,
  type Turn,
  type TurnLink,
  withLens,
} from "./conversation";
import { type Sampling, sameSampling, samplingFields, samplingOf } from "./distribution";
import { Experiments } from "./experiments.svelte";
import { FrameBuffer, grownBy } from "./recording-events";
import { fromFragment, NOTHING, type Selection, toFragment } from "./selection";
import { describeModel } from "./models";
import { keepRun, keptRun } from "./run-store";
import { type Steer, steerFields, steeringVectors, type SteeringVector } from "./steering";
import { type Source, SourceError } from "./source";

export type Activity =
  | { readonly kind: "idle" }
  | { readonly kind: "generating"; readonly abort: AbortController }
  | { readonly kind: "failed"; readonly message: string; readonly keyNeeded: boolean };

/** What a stream is to an answer. */
interface Continuation {
  readonly skipped: number; // how many of its steps are there already
  readonly offset: number; // which step of the answer its first one is
  readonly length: number | null; // at which the answer ended the last time, though it was not over
}

const FROM_THE_START: Continuation = { skipped: 0, offset: 0, length: null };

export class Studio {
  turns = $state.raw<readonly Turn[]>([]);
  selection = $state.raw<Selection>(NOTHING);
  sampling = $state.raw<Sampling>(samplingOf({})); // that the bars are drawn with: at first the run's own
  private samplingIsSet = $state.raw(false); // whether somebody has set it; else the next text has the model's own settings
  activity = $state.raw<Activity>({ kind: "idle" });
  models = $state.raw<readonly string[]>([]);
  model = $state.raw<string | null>(null); // that the next text is asked of; null: the server's first
  description = $state.raw<DescribedModel | null>(null); // of that model; null: not known
  loading = $state.raw(false); // whether that model is being loaded
  raw = $state.raw(false); // without the chat template
  thinking = $state.raw(false); // whether the model is to think before it answers
  seed = $state.raw<number | null>(null); // of the next text; null: drawn
  maxTokens = $state.raw<number | null>(null); // of the next text; null: as many as the model's own settings say
  steering = $state.raw<readonly SteeringVector[]>([]); // that fit that model
  steer = $state.raw<readonly Steer[]>([]); // what the next text is steered by
  draft = $state.raw(""); // what is typed and not sent yet
  asking = $state.raw<string | null>(null); // what was sent and is not answered yet
  readonly experiments: Experiments;
  private branchCount = 0; // of this page, for their keys
  private receiving = $state.raw<ReadonlySet<number>>(new Set()); // the keys of branches whose stream is open
  private settled = $state.raw<{ readonly run: Recording | null; readonly steer: readonly Steer[] } | null>(null); // before the answer that is being written

  constructor(
    readonly source: Source,
    private readonly address: Address,
  ) {
    this.experiments = new Experiments(source);
  }

  /** The turn that is looked into. */
  get turn(): Turn | null {
    return this.turns[this.selection.turn ?? this.turns.length - 1] ?? null;
  }

  /** The turn that the conversation goes on from. */
  get lastTurn(): Turn | null {
    return this.turns.at(-1) ?? null;
  }

  get branches(): readonly Branch[] {
    return this.turn?.branches ?? [];
  }

  get branch(): Branch | null {
    return this.branches[this.selection.branch] ?? null;
  }

  get run(): Recording | null {
    return this.branch?.run ?? null;
  }

  /** The run for views that ask for more of it: one that does not change with every token. */
  get settledRun(): Recording | null {
    return this.branch?.state.kind === "writing" ? (this.settled?.run ?? this.run) : this.run;
  }

  /** What that run was steered by. */
  get settledSteer(): readonly Steer[] {
    const earlier = this.branch?.state.kind === "writing" && this.settled?.run ? this.settled : null;
    return (earlier ?? this.turn?.question)?.steer ?? [];
  }

  get step() {
    return this.selection.token === null ? null : (this.run?.steps[this.selection.token] ?? null);
  }

  /** Whether the selected token is one that a branch was started with. */
  get chosenByHand(): boolean {
    const { branch, token } = this.selection;
    if (token === null) return false;
    const owner = this.branches[ownerOf(this.branches, branch, token)];
    return owner !== undefined && token - owner.at < owner.forced.length;
  }

  get writing(): boolean {
    return this.activity.kind === "generating";
  }

  /** Whether another answer can be asked for now. */
  get canWrite(): boolean {
    return this.source.stream !== undefined && !this.writing;
  }

  /** Whether the answer that is looked into can be gone on with: what comes after an earlier one is there already. */
  get canGoOn(): boolean {
    return this.canWrite && this.turn === this.lastTurn;
  }

  /** Whether the layers of the answer that is looked into are still being read. */
  get readingLens(): boolean {
    return this.branches.some(({ key }) => this.receiving.has(key));
  }

  /** Whether the sliders stand elsewhere than in the run. */
  get reshaped(): boolean {
    if (!this.run) return false;
    const own = samplingOf(this.run.settings);
    return !sameSampling(own, this.sampling);
  }

  // Opening ---------------------------------------------------------------------------------------------------------------

  /** Show the first run, and then whatever the address leads to. */
  async open(fragment: string): Promise<void> {
    const selection = fromFragment(fragment);
    const link = this.source.stream ? fromLink(selection.run) : null;
    const kept = selection.shown === null ? null : keptRun(selection.shown);
    await this.attempt(async () => this.show(kept ?? (await this.source.run()), { ...selection, branch: 0, turn: null, run: link ? selection.run : null }));
    try {
      this.models = (await this.source.models?.()) ?? [];
    } catch {
      this.models = []; // the list is a convenience; asking for a text says what is wrong
    }
    const first = link?.find(({ question }) => question)?.question?.model;
    void this.choose(first ?? this.models[0] ?? null);
    if (link) await this.restore(link, selection);
  }

  /** Show a run that is there already, in place of the conversation. */
  show(run: Recording, selection: Selection = NOTHING): void {
    const inside = selection.token !== null && selection.token < run.steps.length;
    this.turns = [{ question: null, branches: [this.firstBranch(run, { kind: "whole" })], chosen: 0 }];
    this.sampling = samplingOf(run.settings);
    this.selection = inside ? { ...selection, branch: 0 } : { ...selection, run: null, branch: 0, token: mostSurprising(run), cell: null };
  }

  /** Show a run from a file; this window can open it again. */
  showFile(run: Recording): void {
    this.show(run);
    this.select({ shown: keepRun(run) });
  }

  /** Go where an address leads that was put in while the page was open. */
  async follow(fragment: string): Promise<void> {
    const selection = fromFragment(fragment);
    const link = fromLink(selection.run);
    if (selection.run === this.selection.run || !link) this.selection = this.inside({ ...selection, run: this.selection.run });
    else if (this.canWrite) await this.restore(link, selection);
  }

  /** Write a conversation once more, and show the place of it that was linked to. */
  private async restore(turns: readonly TurnLink[], selection: Selection): Promise<void> {
    if (turns[0]?.question === null && this.lastTurn?.question) await this.attempt(async () => this.show(await this.source.run()));
    for (const { question, branches, chosen } of turns) {
      if (question && question.model !== this.model) void this.choose(question.model);
      for (const branch of branches) if (!(await this.restoreBranch(question, branch))) return;
      this.selection = this.inside({ ...this.selection, turn: null, branch: chosen });
    }
    this.selection = this.inside({ ...selection, run: toLink(this.turns) });
    this.mirror();
  }

  private async restoreBranch(question: Question | null, { parent, at, ids, lengths }: BranchLink): Promise<boolean> {
    const [first = null, ...later] = lengths;
    if (parent !== null) {
      this.selection = this.inside({ ...this.selection, branch: parent, token: at });
      if (!(await this.goOn(ids, first))) return false;
    } else if (question && !(await this.put(question, first))) {
      return false;
    }
    for (const length of later) if (!(await this.goOnWriting([], length))) return false;
    return true;
  }

  /** A selection, as far as there is such a branch and such a token; where it names no token, the one that was selected stays. */
  private inside(selection: Selection): Selection {
    const turn = selection.turn !== null && selection.turn < this.turns.length - 1 ? selection.turn : null;
    const branches = this.turns[turn ?? this.turns.length - 1]?.branches ?? [];
    const branch = selection.branch < branches.length ? selection.branch : 0;
    const steps = branches[branch]?.run.steps.length ?? 0;
    const token = steps ? Math.min(selection.token ?? this.selection.token ?? 0, steps - 1) : null;
    return { ...selection, turn, branch, token };
  }

  // Selecting -------------------------------------------------------------------------------------------------------------

  /** Select something; `visit`: as a step that the browser's Back takes back. */
  select(change: Partial<Selection>, { visit = false } = {}): void {
    const { token, branch } = { ...this.selection, ...change };
    const same = token === this.selection.token && branch === this.selection.branch;
    const moved = same ? {} : { cell: null, position: null }; // another step has other candidates
    this.selection = { ...this.selection, ...moved, ...change };
    this.mirror(visit);
  }

  /** Look into another turn, at the branch that the conversation went on from. */
  lookInto(number: number): void {
    const { branch, turn } = this.selection;
    if (turn === null) this.turns = this.turns.map((each) => (each === this.lastTurn ? { ...each, chosen: branch } : each));
    const target = this.turns[number];
    if (!target) return;
    const last = number === this.turns.length - 1;
    this.select({ turn: last ? null : number, branch: target.chosen, token: 0, cell: null, position: null });
    if (this.run) this.sampling = samplingOf(this.run.settings);
  }

  /** To a token of the branch that is shown, so many further. */
  walkTokens(by: number): void {
    const last = (this.run?.steps.length ?? 0) - 1;
    if (last >= 0) this.select({ token: Math.max(0, Math.min(last, (this.selection.token ?? 0) + by)) });
  }

  /** To another branch, at the token where it begins, or at the same token where both have it in common. */
  walkBranches(by: number): void {
    const branch = Math.max(0, Math.min(this.branches.length - 1, this.selection.branch + by));
    const target = this.branches[branch];
    if (!target || branch === this.selection.branch) return;
    const token = this.selection.token ?? 0;
    const common = ownerOf(this.branches, branch, token) === ownerOf(this.branches, this.selection.branch, token);
    this.select({ branch, token: common ? token : Math.min(Math.max(target.at, token), target.run.steps.length - 1) });
  }

  private mirror(visit = false): void {
    this.address.write(toFragment(this.selection), visit);
  }

  /** Draw the bars with other settings, and write the next text with them. */
  setSampling(sampling: Sampling): void {
    this.sampling = sampling;
    this.samplingIsSet = true;
  }

  /** Restore what the run was made with. */
  resetSampling(): void {
    if (this.run) this.sampling = samplingOf(this.run.settings);
    this.samplingIsSet = (this.turn?.question?.sampling ?? null) !== null;
  }

  /** What the next text is sampled with: what was set, or what the server has for its model; null: it has not said yet. */
  get nextSampling(): Sampling | null {
    if (this.samplingIsSet) return this.sampling;
    return this.description ? samplingOf(this.description.settings) : null;
  }

  /** How long the next text may be; null: as long as the server says. */
  get nextMaxTokens(): number | null {
    const usual = this.description?.settings["max_new_tokens"];
    return this.maxTokens ?? (typeof usual === "number" ? usual : null);
  }

  // Asking ----------------------------------------------------------------------------------------------------------------

  /** Ask the next text of another model, which is loaded meanwhile. */
  async choose(model: string | null): Promise<void> {
    this.model = model;
    this.description = null;
    this.steering = [];
    this.steer = [];
    const name = model ?? this.models[0];
    if (name === undefined) return;
    this.loading = true;
    try {
      const description = await describeModel(this.source, name);
      if (this.model === model) this.description = description;
      void steeringVectors(this.source, name).then((vectors) => {
        if (this.model === model) this.steering = vectors;
      });
    } catch (error) {
      const known = error instanceof SourceError && error.kind !== "refused"; // asking for a text says it again
      if (this.model === model && !known) this.fail(error);
    } finally {
      if (this.model === model) this.loading = false;
    }
  }

  /** Steer the next text by a vector; 0: not at all. */
  setSteer(name: string, strength: number): void {
    const others = this.steer.filter((steer) => steer.name !== name);
    this.steer = strength === 0 ? others : [...others, { name, strength }];
  }

  /** Ask the model; in a chat, after what was said before. */
  async ask(text: string): Promise<void> {
    const { model, seed, maxTokens, steer, description } = this;
    const sampling = this.samplingIsSet ? this.sampling : null;
    const raw = this.raw || description?.chat_template === false;
    const thinking = !raw && description?.thinking ? this.thinking : null;
    this.asking = text;
    await this.put({ text, model, raw, thinking, sampling, seed, maxTokens, steer });
    this.asking = null;
  }

  /** Forget what was said. */
  startAgain(): void {
    this.turns = [];
    this.selection = { ...NOTHING, view: this.selection.view };
    this.mirror();
  }

  /** `length`: the answer's own, where it is known from the last time. */
  private async put(question: Question, length: number | null = null): Promise<boolean> {
    const { text, model, raw, thinking, sampling, seed, maxTokens, steer } = question;
    const last = this.lastTurn;
    const chosen = this.selection.turn === null ? this.selection.branch : (last?.chosen ?? 0);
    const said = raw || !last?.question || last.question.raw ? [] : [...this.turns.slice(0, -1), { ...last, chosen }];
    const request = {
      model,
      prompt: raw ? text : [...messagesOf(said), { role: "user", content: text }],
      raw,
      max_tokens: length ?? maxTokens,
      seed,
      ...(sampling ? samplingFields(sampling) : {}),
      ...(thinking === null ? {} : { chat_template_kwargs: { enable_thinking: thinking } }),
      ...steerFields(steer),
    } as unknown as RecordRequest;
    return this.write(request, { ...FROM_THE_START, length }, null, (run) => {
      const branch = this.firstBranch(run, { kind: "writing" });
      this.turns = [...said, { question, branches: [branch], chosen: 0 }];
      this.selection = { ...NOTHING, view: this.selection.view, token: 0 };
      this.sampling = samplingOf(run.settings);
      return branch.key;
    });
  }

  private firstBranch(run: Recording, state: BranchState): Branch {
    return { key: this.branchCount++, parent: null, at: 0, forced: [], ends: [], run, written: run, state };
  }

  /** Whether a branch goes on with these tokens in the selected step's place. */
  hasBranch(ids: readonly number[]): boolean {
    return branchWith(this.branches, this.selection.branch, this.selection.token ?? 0, ids) !== null;
  }

  /** Go on from the selected step with other tokens, the first a candidate of it: a new branch, unless there is one already. */
  async goOn(ids: readonly number[], length: number | null = null): Promise<boolean> {
    const { branches, run, turn, step } = this;
    const { branch, token: at } = this.selection;
    const first = ids[0];
    if (!run || !turn || !step || at === null || first === undefined) return false;
    const same = branchWith(branches, branch, at, ids);
    if (same !== null) {
      this.select({ branch: same, token: at + ids.length - 1 });
      return true;
    }
    const choice = otherChoice(step, first, endsText(run, first));
    if (!choice || !this.canGoOn) return false;
    const parent = at > 0 ? ownerOf(branches, branch, at - 1) : 0; // whose tokens it shares up to there
    const steps = [...run.steps.slice(0, at), choice];
    const grown = { ...run, steps, text: textOf(steps) };
    const state: BranchState = { kind: choice.finish ? "whole" : "writing" };
    const started = { ...this.firstBranch(grown, state), parent, at, forced: ids };
    this.turns = [...this.turns.slice(0, -1), { ...turn, branches: [...branches, started] }];
    this.selection = { ...this.selection, branch: branches.length, token: at, cell: null };
    this.link();
    return choice.finish !== null || this.goOnWriting(ids.slice(1), length);
  }

  /** Go on after the last token of the branch that is shown; at first with certain tokens. */
  async goOnWriting(next: readonly number[] = [], length: number | null = null): Promise<boolean> {
    if (!this.branch || !this.canGoOn) return false;
    const { run, key } = this.branch;
    const had = run.steps.length;
    const usual = this.turn?.question?.maxTokens ?? run.settings["max_new_tokens"];
    const most = typeof usual === "number" ? usual : had;
    const end = length ?? (had < most ? most : had + most);
    // An encoder-decoder's answer stands apart from what it reads: it is written anew, with its first tokens forced.
    const again = isEncoderDecoder(run) ? had : 0;
    const forced = [...run.steps.slice(0, again).map((step) => step.token.id), ...next];
    const request = {
      model: this.turn?.question?.model ?? this.model,
      prompt: idsUpTo(run, had - again),
      max_tokens: Math.max(forced.length + 1, end - had + again),
      seed: run.seed,
      ...samplingFields(samplingOf(run.settings)),
      ...(forced.length ? { forced_tokens: forced.map((id, number) => [number, id]) } : {}),
      ...steerFields(this.turn?.question?.steer),
    } as unknown as RecordRequest;
    return this.write(request, { skipped: again, offset: had - again, length }, key, (start) => {
      const text = again ? "" : textBetween(run, start);
      this.change(key, (branch) => ({ ...branch, run: { ...branch.run, text }, written: start }));
      return key;
    });
  }

  stop(): void {
    if (this.activity.kind === "generating") this.activity.abort.abort();
  }

  /** Read what each layer would have predicted in the selected step's place. */
  async readLens(): Promise<void> {
    const token = this.selection.token;
    if (!this.branch || token === null) return;
    const { run, key } = this.branch;
    const ids = idsUpTo(run, token);
    const question = this.turn?.question;
    const body = { model: question?.model ?? this.model, prompt: ids, positions: [ids.length - 1], ...steerFields(question?.steer) };
    await this.attempt(async () => {
      const { predictions } = (await this.source.slice({ view: "lens", body })) as Lens;
      const column = predictions.flatMap(([prediction]) => (prediction ? [prediction] : []));
      const lens = {
        texts: column.map(({ text }) => text),
        probabilities: column.map(({ probability }) => probability),
        ranks: column.map(({ rank }) => rank),
        entropies: column.map(({ entropy }) => entropy),
      };
      this.spreadLens(key, token, [lens]);
    });
  }

  // Writing ---------------------------------------------------------------------------------------------------------------

  /** Let an answer grow as it comes; done when its text is, which is before its lens. Whether it is whole.
   *
   * `key`: of its branch, where that is there already; `start` puts what is known first into a branch, and gives its key.
   */
  private write(request: RecordRequest, continuation: Continuation, key: number | null, start: (run: Recording) => number): Promise<boolean> {
    const abort = new AbortController();
    this.settled = { run: this.run, steer: this.turn?.question?.steer ?? [] };
    this.activity = { kind: "generating", abort };
    if (key !== null) this.change(key, (branch) => ({ ...branch, state: { kind: "writing" } }));
    return new Promise((written) => {
      void this.receive(request, abort, continuation, key, start, written);
    });
  }

  private async receive(
    request: RecordRequest,
    abort: AbortController,
    { skipped, offset, length }: Continuation,
    key: number | null,
    start: (run: Recording) => number,
    written: (whole: boolean) => void,
  ): Promise<void> {
    let steps = 0;
    let over = false;
    const began = performance.now();
    const change = (grown: (branch: Branch) => Branch): void => {
      if (key !== null) this.change(key, grown);
    };
    const buffer = new FrameBuffer((growth) => {
      const tokens_per_second = (1000 * steps) / (performance.now() - began); // until the server says it
      change((branch) => ({ ...branch, run: { ...grownBy(branch.run, growth), tokens_per_second } }));
    });
    const end = (state: BranchState): void => {
      buffer.flush();
      if (over) return;
      over = true;
      const early = state.kind === "whole" && length !== null; // as it was the last time
      const finalState: BranchState = early ? { kind: "stopped" } : state;
      change((branch) => ({ ...branch, state: finalState, ends: finalState.kind === "whole" ? branch.ends : [...branch.ends, branch.run.steps.length] }));
      this.activity = { kind: "idle" };
      this.link();
      written(state.kind === "whole");
    };
    try {
      for await (const event of this.source.stream?.(request, abort.signal) ?? []) {
        if (event.kind === "start") {
          key = start(event.run);
          this.receiving = new Set([...this.receiving, key]);
          this.link();
        } else if (event.kind === "step") {
          buffer.add(steps++ < skipped ? null : event.step, event.text);
          if (event.step.finish !== null) end({ kind: "whole" });
        } else if (event.kind === "lens") {
          if (key !== null) this.spreadLens(key, event.first + offset, event.lens);
        } else {
          change((branch) => ({ ...branch, run: { ...branch.run, tokens_per_second: event.tokens_per_second } }));
        }
      }
      end({ kind: "cut off", reason: "the server's time for one answer was over." });
    } catch (error) {
      const failed = !over && !abort.signal.aborted && (key === null || needsKey(error));
      end(abort.signal.aborted ? { kind: "stopped" } : { kind: "cut off", reason: messageOf(error) });
      if (failed) this.fail(error);
    } finally {
      this.receiving = new Set([...this.receiving].filter((other) => other !== key));
    }
  }

  /** What the layers predict depends on what stands before alone: branches that begin in the same way have it in common. */
  private spreadLens(key: number, first: number, lenses: readonly RecordedLens[]): void {
    const own = this.turns.flatMap(({ branches }) => branches).find((branch) => branch.key === key);
    if (!own) return;
    this.turns = this.turns.map((turn) => {
      if (!turn.branches.includes(own)) return turn;
      const branches = turn.branches.map((branch) => {
        const shared = lenses.slice(0, Math.max(0, commonSteps(own.run, branch.run) + 1 - first));
        return { ...branch, run: withLens(branch.run, first, shared) };
      });
      return { ...turn, branches };
    });
  }

  private change(key: number, change: (branch: Branch) => Branch): void {
    this.turns = this.turns.map((turn) =>
      turn.branches.some((branch) => branch.key === key)
        ? { ...turn, branches: turn.branches.map((branch) => (branch.key === key ? change(branch) : branch)) }
        : turn,
    );
  }

  /** Let the address lead to the conversation as it is now. */
  private link(): void {
    this.selection = { ...this.selection, run: toLink(this.turns) };
    this.mirror();
  }

  /** Do something that can fail; what failed is said, and everything else stays as it is. */
  private async attempt(work: () => Promise<void>): Promise<void> {
    try {
      await work();
      if (this.activity.kind === "failed") this.activity = { kind: "idle" };
    } catch (error) {
      this.fail(error);
    }
  }

  private fail(error: unknown): void {
    this.activity = { kind: "failed", message: messageOf(error), keyNeeded: needsKey(error) };
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function needsKey(error: unknown): boolean {
  return error instanceof SourceError && error.kind === "key needed";
}

/** The text of an answer's beginning, from the prompt of what goes on from it. */
function textBetween(run: Recording, continuation: Recording): string {
  return continuation.prompt.startsWith(run.prompt) ? continuation.prompt.slice(run.prompt.length) : textOf(run.steps);
}

function textOf(steps: Recording["steps"]): string {
  return steps.map(({ token }) => (token.special ? "" : token.text)).join("");
}
