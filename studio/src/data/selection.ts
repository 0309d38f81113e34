// What is selected: one object that every view reads, mirrored in the page's address so that a link restores the view.

export interface Selection {
  readonly view: string | null; // in the conversation's place
  readonly run: string | null; // the conversation, as what was asked
  readonly shown: string | null; // the id of a run that was opened from a file
  readonly turn: number | null; // null: the last
  readonly branch: number;
  readonly token: number | null;
  readonly layer: number | null;
  readonly head: number | null;
  readonly cell: number | null;
  readonly position: number | null; // in the text that a view reads, prompt included
  readonly part: string | null; // which of several things a view shows
  readonly step: number | null; // of a training, after which its model is looked at; null: the last that was kept
  readonly text: string | null; // that a view was asked about, in place of the run
  readonly experiment: string | null; // the server's view that is chosen under Experiments
  readonly asked: string | null; // of it, as JSON
}

export const NOTHING: Selection = { view: null, run: null, shown: null, turn: null, branch: 0, token: null, layer: null, head: null, cell: null, position: null, part: null, step: null, text: null, experiment: null, asked: null };

/** As the part of an address behind #; what is not selected is left out. */
export function toFragment(selection: Selection): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(selection)) {
    if (value !== NOTHING[name as keyof Selection]) parameters.set(name, String(value));
  }
  return parameters.toString();
}

/** Read from an address; whatever makes no sense is not selected. */
export function fromFragment(fragment: string): Selection {
  const parameters = new URLSearchParams(fragment.replace(/^#/, ""));
  const index = (name: string): number | null => {
    const text = parameters.get(name);
    return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
  };
  return {
    view: parameters.get("view"),
    run: parameters.get("run"),
    shown: parameters.get("shown"),
    turn: index("turn"),
    branch: index("branch") ?? NOTHING.branch,
    token: index("token"),
    layer: index("layer"),
    head: index("head"),
    cell: index("cell"),
    position: index("position"),
    part: parameters.get("part"),
    step: index("step"),
    text: parameters.get("text"),
    experiment: parameters.get("experiment"),
    asked: parameters.get("asked"),
  };
}
