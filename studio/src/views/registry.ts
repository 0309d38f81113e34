// The views that can take the conversation's place. Each is loaded when it is first opened; a new one is a component and a line here.
import type { Component } from "svelte";
import type { Recording } from "../api/types";
import { hasExperts } from "../data/reading";
import type { ExperimentResult, Source } from "../data/source";
import type { Studio } from "../data/studio.svelte";

/** What every view is given: the page's state, and the run that it shows. */
export interface ViewProps {
  readonly studio: Studio;
  readonly run: Recording;
}

export interface ViewEntry {
  /** As it stands in an address. */
  readonly id: string;
  readonly label: string;
  /** One line for people who have not opened it. */
  readonly title: string;
  /** Whether there is nothing in it without a model, so that a saved page has what it holds of it, or its Python alone. */
  readonly needsModel?: boolean;
  /** The server's views that it shows, where they are others than the one of its id. */
  readonly shows?: readonly string[];
  readonly load: () => Promise<{ readonly default: Component<ViewProps> }>;
  /** Whether there is anything to see of a run; without it there always is. */
  readonly fits?: (run: Recording) => boolean;
}

export const VIEWS: readonly ViewEntry[] = [
  {
    id: "why",
    label: "Why",
    title: "Why the model wrote a token, in three sentences that were checked",
    shows: ["explain"],
    needsModel: true,
    load: () => import("./Why.svelte"),
  },
  {
    id: "attention",
    label: "Attention",
    title: "Which tokens each token attends to, in every head",
    shows: ["attention", "attention-maps"],
    load: () => import("./Attention.svelte"),
  },
  {
    id: "lens",
    label: "Lens",
    title: "What each layer would have predicted at each token",
    load: () => import("./Lens.svelte"),
  },
  {
    id: "experts",
    label: "Experts",
    title: "To which experts of a mixture each token goes, layer by layer",
    needsModel: true,
    load: () => import("./Experts.svelte"),
    fits: hasExperts,
  },
  {
    id: "inside",
    label: "Step inside",
    title: "From the whole model into a block, a head, a neuron, one dot product, with this run's numbers",
    needsModel: true,
    load: () => import("./Inside.svelte"),
  },
  {
    id: "tree",
    label: "Tree",
    title: "All branches of the answer, and the likeliest ways to go on",
    load: () => import("./Tree.svelte"),
  },
  {
    id: "patch",
    label: "Patch",
    title: "Which places inside the model carry the difference between two texts",
    needsModel: true,
    load: () => import("./Patch.svelte"),
  },
  {
    id: "compare",
    label: "Compare",
    title: "Two answers side by side: another setting, another model, or a part of the model switched off",
    needsModel: true,
    load: () => import("./Compare.svelte"),
  },
  {
    id: "tokens",
    label: "Tokens",
    title: "How a text is cut into tokens, by one tokenizer or several",
    load: () => import("./Tokens.svelte"),
  },
  {
    id: "tasks",
    label: "Tasks",
    title: "Labels, entities, gaps, answers, rewritten texts, similarity",
    needsModel: true,
    load: () => import("./Tasks.svelte"),
  },
  {
    id: "parameters",
    label: "Parameters",
    title: "What the model is made of: every tensor with its shape, its size and its values",
    needsModel: true,
    load: () => import("./Parameters.svelte"),
  },
  {
    id: "experiments",
    label: "Experiments",
    title: "Every other view that the server has: fill in what is asked, and see its page",
    needsModel: true,
    load: () => import("./Experiments.svelte"),
  },
  {
    id: "training",
    label: "Training",
    title: "A model as it learns: losses, samples, and one text at each of its snapshots",
    shows: ["learning"],
    needsModel: true,
    load: () => import("./Training.svelte"),
  },
];

const CONVERSATION_SHOWS: readonly string[] = ["look", "model"];

/** Whether a view of the server's is shown by one of these, or by the conversation, in a way of its own. */
export function hasOwnView(name: string): boolean {
  return CONVERSATION_SHOWS.includes(name) || VIEWS.some(({ id, shows }) => (shows ?? [id]).includes(name));
}

/** The views of a run: those that do not fit it are left out, but for the one that is open. */
export function viewsOf(run: Recording | null, open: string | null): readonly ViewEntry[] {
  return VIEWS.filter(({ id, fits }) => !fits || id === open || (run !== null && fits(run)));
}

/** What a page without a model holds of a view. */
export function heldResults(view: ViewEntry, source: Source): readonly ExperimentResult[] {
  const results = source.page === undefined ? (source.results ?? []) : [];
  return results.filter(({ name }) => (view.id === "experiments" ? !hasOwnView(name) : (view.shows ?? [view.id]).includes(name)));
}

export function findView(id: string | null): ViewEntry | null {
  return VIEWS.find((view) => view.id === id) ?? null;
}
