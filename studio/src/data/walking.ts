// The keys that walk an answer's tokens and branches, and the focus that goes with them.
import { ownerOf } from "./conversation";
import type { Studio } from "./studio.svelte";

/** Left and right walk a branch's tokens, Home and End go to its ends, up and down lead from branch to branch. */
export function walk(studio: Studio, key: string): boolean {
  const steps: Record<string, () => void> = {
    ArrowLeft: () => studio.walkTokens(-1),
    ArrowRight: () => studio.walkTokens(1),
    Home: () => studio.walkTokens(-Infinity),
    End: () => studio.walkTokens(Infinity),
    ArrowUp: () => studio.walkBranches(-1),
    ArrowDown: () => studio.walkBranches(1),
  };
  const step = steps[key];
  step?.();
  return step !== undefined;
}

/** Focus the selected token, where it stands among these elements: those of a token have `data-place`, its branch and number. */
export function focusSelected(root: ParentNode, studio: Studio): void {
  const { branch, token } = studio.selection;
  const place = `${ownerOf(studio.branches, branch, token ?? 0)}.${token ?? 0}`;
  root.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
}
