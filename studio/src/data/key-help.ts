// The keys, for the list that "?" opens. What handles a key stands with the component that it is for.

export interface KeyHelp {
  readonly keys: readonly string[];
  readonly effect: string;
}

const COMMAND = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
export const PALETTE_KEYS: readonly string[] = [COMMAND, "K"];

export const KEYS: readonly KeyHelp[] = [
  { keys: PALETTE_KEYS, effect: "Find a view, a token or an action by typing" },
  { keys: ["?"], effect: "Show these keys" },
  { keys: ["←", "→"], effect: "Select the token before or after, in the answer" },
  { keys: ["Home", "End"], effect: "Select the answer's first or last token" },
  { keys: ["Alt", "↑", "↓"], effect: "Show the branch before or after, at the same token" },
  { keys: ["Alt", "←", "→"], effect: "The same as ← and →, wherever the focus is" },
  { keys: ["Enter", "Esc"], effect: "In “Step inside”: go in, and out again" },
  { keys: ["←", "→", "↑", "↓"], effect: "In views: walk heads, cells, layers and tokens" },
  { keys: ["Tab"], effect: "Go to the next control" },
  { keys: ["Enter"], effect: "Run what is typed; press what is focused" },
  { keys: [COMMAND, "Enter"], effect: "In “Experiments”: run what is filled in" },
  { keys: ["Shift", "Enter"], effect: "A new line in what is typed" },
  { keys: ["Esc"], effect: "Close what is open" },
];

/** Whether a key is meant for a text that is being typed. */
export function isTyping(event: Event): boolean {
  const [target] = event.composedPath(); // the element itself, inside a shadow root too
  return target instanceof HTMLElement && target.matches("input:not([type=range]), textarea, select, [contenteditable]");
}
