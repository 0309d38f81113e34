// What is different in the second of two answers, and the request that writes it.
import type { DescribedModel, Recording, RecordRequest } from "../../api/types";
import { samplingOf } from "../../data/distribution";
import type { Selection } from "../../data/selection";

export type PromptMode = "same" | "chat" | "raw";
export const PARTS = ["nothing", "head", "attention", "cross", "mlp", "block"] as const;
export type Part = (typeof PARTS)[number];

/** The part of the model that adds nothing to the residual stream. */
export interface SwitchedOff {
  readonly part: Part;
  readonly stack: "" | "encoder.";
  readonly layer: number;
  readonly head: number;
}

export interface Variant {
  readonly model: string;
  readonly mode: PromptMode;
  readonly text: string; // for chat and raw
  readonly thinking: boolean;
  readonly temperature: number;
  readonly seed: number | null;
  readonly off: SwitchedOff;
}

type Changes = Record<string, { scale: number; heads?: number[] }>;

/** The same answer once more, but for what an address says is switched off. */
export function sameAs(run: Recording, model: string, { part, layer, head }: Pick<Selection, "part" | "layer" | "head">): Variant {
  return {
    model,
    mode: "same",
    text: questionOf(run),
    thinking: false,
    temperature: samplingOf(run.settings).temperature,
    seed: run.seed,
    off: { part: PARTS.find((known) => known === part) ?? "nothing", stack: "", layer: layer ?? 0, head: head ?? 0 },
  };
}

export function recordRequest(run: Recording, variant: Variant): RecordRequest {
  const { topP, topK } = samplingOf(run.settings);
  const limit = run.settings["max_new_tokens"];
  const draws = variant.temperature > 0;
  return {
    model: variant.model,
    prompt: variant.mode === "same" ? run.prompt : variant.text,
    raw: variant.mode !== "chat",
    temperature: variant.temperature,
    change: changesOf(variant.off),
    ...(variant.mode === "chat" && variant.thinking ? { chat_template_kwargs: { enable_thinking: true } } : {}),
    ...(draws ? { top_p: topP, ...(topK ? { top_k: topK } : {}) } : {}),
    ...(draws && variant.seed !== null ? { seed: variant.seed } : {}),
    ...(typeof limit === "number" ? { max_tokens: limit } : {}),
  } as unknown as RecordRequest;
}

/** As the sites that are scaled to zero. */
export function changesOf({ part, stack, layer, head }: SwitchedOff): Changes {
  const block = `${stack}blocks.${layer}.`;
  switch (part) {
    case "nothing":
      return {};
    case "head":
      return { [`${block}attention.heads`]: { scale: 0, heads: [head] } };
    case "attention":
    case "cross":
    case "mlp":
      return { [`${block}${part}.update`]: { scale: 0 } };
    case "block":
      return { [`${block}*.update`]: { scale: 0 } };
  }
}

/** The same changes in Python. */
export function pythonChanges(off: SwitchedOff): string {
  const entries = Object.entries(changesOf(off)).map(
    ([site, { heads }]) => `${JSON.stringify(site)}: Change(scale=0${heads ? `, heads=[${heads.join(", ")}]` : ""})`,
  );
  return `model.watch(prompt, change={${entries.join(", ")}})`;
}

/** What is switched off, in words. */
export function describeOff({ part, stack, layer, head }: SwitchedOff): string {
  const block = `${stack ? "encoder " : ""}block ${layer}`;
  const words: Readonly<Record<Part, string>> = {
    nothing: "nothing",
    head: `head ${head} of ${block}`,
    attention: `attention of ${block}`,
    cross: `cross-attention of ${block}`,
    mlp: `MLP of ${block}`,
    block: `${block}, all of it`,
  };
  return words[part];
}

/** The parts that a model has. */
export function partsOf(description: DescribedModel | null, stack: string): Part[] {
  const crosses = description?.architecture === "encoder-decoder" && stack === "";
  return PARTS.filter((part) => part !== "cross" || crosses);
}

/** The last question of a rendered chat, as far as its special tokens show it; the whole prompt where there are none. */
function questionOf(run: Recording): string {
  const segments: string[] = [""];
  for (const token of run.prompt_tokens) {
    if (token.special) segments.push("");
    else segments[segments.length - 1] += token.text;
  }
  const turns = segments.map((segment) => segment.trim()).filter((segment) => segment !== "");
  const asked = turns.filter((turn) => /^user\s*\n/.test(turn)).at(-1);
  if (asked !== undefined) return asked.replace(/^user\s*\n/, "").trim();
  return turns[turns.lastIndexOf("user") + 1] ?? run.prompt;
}
