// Where links within a page lead: to a part that opens, and comes into sight.
import { getContext, setContext } from "svelte";

export class Anchors {
  target = $state.raw<{ readonly name: string } | null>(null); // an object, so that the same link can be followed again

  follow(name: string): void {
    this.target = { name };
  }
}

const ANCHORS = Symbol("anchors");

/** Those of the page around, or new ones for a page that stands by itself. */
export function pageAnchors(): Anchors {
  return getContext<Anchors | undefined>(ANCHORS) ?? setContext(ANCHORS, new Anchors());
}
