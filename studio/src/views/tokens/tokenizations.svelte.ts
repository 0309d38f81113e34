// One text's tokens under several tokenizers, asked for while somebody types: at most once a frame, and for each tokenizer one
// request at a time.
import { SvelteMap } from "svelte/reactivity";
import type { TokenizedText } from "../../api/types";
import { Loader } from "../../data/loader.svelte";

export interface TokensRequest {
  readonly text: string;
  readonly special: boolean;
}

type Ask = (model: string, request: TokensRequest) => Promise<TokenizedText>;

export class Tokenizations {
  private readonly loaders = new SvelteMap<string, Loader<TokenizedText>>();
  private readonly busy = new Set<string>();
  private readonly answered = new Map<string, TokensRequest>(); // what was asked last, of each tokenizer
  private wanted: { models: readonly string[]; request: TokensRequest } | null = null;
  private frame = 0;

  constructor(private readonly ask: Ask) {}

  of(model: string): Loader<TokenizedText> {
    return this.loaders.get(model) ?? NONE;
  }

  request(models: readonly string[], request: TokensRequest): void {
    this.wanted = { models, request };
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      for (const model of this.wanted?.models ?? []) void this.send(model);
    });
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.wanted = null;
  }

  /** Ask for the latest text, and once more if it has changed meanwhile. */
  private async send(model: string): Promise<void> {
    const request = this.wanted?.request;
    if (!request || this.busy.has(model) || this.answered.get(model) === request) return;
    const loader = this.loaders.get(model) ?? new Loader<TokenizedText>();
    this.loaders.set(model, loader);
    this.busy.add(model);
    this.answered.set(model, request);
    await loader.load(() => this.ask(model, request));
    this.busy.delete(model);
    if (this.wanted?.models.includes(model)) await this.send(model);
  }
}

const NONE = new Loader<TokenizedText>();
