// What can be done with the page as a whole, by a button, a key or the palette.
import { getContext, setContext } from "svelte";
import type { Recording } from "../api/types";
import { hasOwnView, viewsOf } from "../views/registry";
import { percent, visible } from "./format";
import { DEFAULT_SERVER, type Host } from "./host";
import { runId } from "./run-id";
import { readRunSlices } from "./run-slices";
import { readSavedRun, savedPage } from "./saved-page";
import { fromFragment, toFragment } from "./selection";
import { SNIPPET_KINDS, snippet, type SnippetKind } from "./snippets";
import { mostSurprising } from "./conversation";
import type { Studio } from "./studio.svelte";
import { Theme } from "./theme.svelte";

export interface Command {
  readonly kind: "view" | "token" | "action";
  readonly label: string;
  readonly detail: string;
  readonly run: () => void;
}

export type Panel = "palette" | "keys";

export class Commands {
  readonly theme: Theme;
  notice = $state.raw(""); // one sentence about what was just done, or could not be
  panel = $state.raw<Panel | null>(null);
  chooseFile: () => void = () => {}; // set by who holds the file field

  constructor(
    private readonly studio: Studio,
    private readonly host: Host,
  ) {
    this.theme = new Theme(host);
  }

  get canShare(): boolean {
    return this.host.address.link("") !== null;
  }

  get canSave(): boolean {
    return this.studio.source.pageTemplate !== undefined;
  }

  /** The run as something to paste. */
  snippet(kind: SnippetKind, run: Recording): string {
    return snippet(kind, run, this.host.server ?? DEFAULT_SERVER);
  }

  async copy(kind: SnippetKind): Promise<void> {
    const { run } = this.studio;
    if (run) await this.toClipboard(this.snippet(kind, run), `Copied as ${kind}.`);
  }

  async share(): Promise<void> {
    const { run, selection } = this.studio;
    const link = run && this.host.address.link(toFragment({ ...selection, shown: runId(run) }));
    if (link) await this.toClipboard(link, "A link to what is shown was copied.");
  }

  /** Say so if the link that led here is to another run than the one that is shown. */
  checkLink(fragment: string): void {
    const { run } = this.studio;
    const linked = fromFragment(fragment).shown;
    if (run && linked !== null && linked !== runId(run)) {
      this.notice = "This link is to a run that this page does not have, so another is shown. Ask for that run as a file, and drop it here.";
    }
  }

  /** Download the run as one page that needs no server. */
  async save(): Promise<void> {
    const { run, source, turn } = this.studio;
    if (!run || !source.pageTemplate) return;
    this.notice = "Reading the run's attention, to save it too…";
    try {
      const slices = await readRunSlices(source, run, turn?.question?.steer ?? []);
      const { results } = this.studio.experiments;
      const held = results.length ? { ...slices, experiments: results } : slices;
      download("run.html", savedPage(await source.pageTemplate(), run, this.selectionToSave(), held));
      const attention = Object.keys(slices).length ? "." : ", without its attention: the model that wrote it is not here.";
      this.notice = `Saved as run.html: a page that opens without a server${attention}`;
    } catch (error) {
      this.notice = `The page could not be saved: ${message(error)}`;
    }
  }

  /** What the saved page opens with: what is selected in the run, unless that is what it would open with anyway. */
  private selectionToSave(): string {
    const { run, selection } = this.studio;
    const { token } = selection;
    return toFragment({ ...selection, run: null, shown: null, turn: null, branch: 0, token: run && token === mostSurprising(run) ? null : token });
  }

  /** Show the run in a file. */
  async open(file: File): Promise<void> {
    try {
      this.studio.showFile(readSavedRun(await file.text()));
      this.notice = `${file.name} is shown.`;
    } catch (error) {
      this.notice = `${file.name} cannot be opened: ${message(error)}`;
    }
  }

  openPalette(): void {
    this.panel = "palette";
    this.studio.experiments.load().catch(() => {}); // the palette works without them, and their view says what is wrong
  }

  list(): Command[] {
    return [...this.views(), ...this.actions(), ...this.tokens()];
  }

  /** The server's views that have no other place. */
  experiments(): Command[] {
    const { studio } = this;
    const open = (name: string) => () => studio.select({ view: "experiments", experiment: name, asked: null });
    const views = studio.experiments.views.filter(({ name }) => !hasOwnView(name));
    return views.map(({ name, title, description }) => ({ kind: "view", label: title, detail: description, run: open(name) }));
  }

  private views(): Command[] {
    const { studio } = this;
    const open = (view: string | null) => () => studio.select({ view });
    const conversation: Command = { kind: "view", label: "Conversation", detail: "The prompt and the answer", run: open(null) };
    return [conversation, ...viewsOf(studio.run, studio.selection.view).map(({ id, label, title }): Command => ({ kind: "view", label, detail: title, run: open(id) }))];
  }

  private actions(): Command[] {
    const action = (label: string, detail: string, run: () => void): Command => ({ kind: "action", label, detail, run });
    return [
      ...(this.canShare ? [action("Share", "Copy a link to what is shown", () => void this.share())] : []),
      ...(this.canSave ? [action("Save", "Download the run as one HTML file", () => void this.save())] : []),
      action("Open a file", "A saved run: .json or .html", () => this.chooseFile()),
      ...SNIPPET_KINDS.map((kind) => action(`Copy as ${kind}`, "What writes this text again", () => void this.copy(kind))),
      action("Reset the sliders", "Temperature, top-k and top-p of the run", () => this.studio.resetSampling()),
      action("Switch light and dark", "The page's colours", () => this.theme.toggle()),
      action("Keys", "What the keyboard does", () => (this.panel = "keys")),
    ];
  }

  private tokens(): Command[] {
    const { studio } = this;
    return (studio.run?.steps ?? []).map((step, number) => ({
      kind: "token",
      label: visible(step.token.text),
      detail: `Token ${number} of the answer, ${percent(2 ** -(step.surprisal ?? 0))} under the model`,
      run: () => studio.select({ token: number }),
    }));
  }

  private async toClipboard(text: string, done: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      this.notice = done;
    } catch {
      this.notice = `The browser does not let this page copy. Here it is: ${text}`;
    }
  }
}

/** The commands that each typed word is part of: first those whose name begins with what is typed, then those whose name holds it. */
export function matching(commands: readonly Command[], typed: string): Command[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = commands.map(({ kind, label, detail }) => `${label} ${detail} ${kind}`.toLowerCase().replaceAll("·", " "));
  const chosen = commands.filter((_, number) => words.every((word) => texts[number]?.includes(word)));
  const place = ({ label }: Command): number => {
    const at = label.toLowerCase().replace(/^·/, "").indexOf(words[0] ?? "");
    return at < 0 ? 2 : Math.min(at, 1);
  };
  return chosen.sort((first, second) => place(first) - place(second)); // which keeps the order of equals
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function download(name: string, html: string): void {
  const address = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}

const COMMANDS = Symbol("commands");

export function setCommands(commands: Commands): void {
  setContext(COMMANDS, commands);
}

export function getCommands(): Commands {
  return getContext<Commands>(COMMANDS);
}
