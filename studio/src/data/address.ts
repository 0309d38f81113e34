// Where the selection is written down, so that it can be read again: a page's own address, or, in a notebook, nothing but memory.

export interface Address {
  /** The part behind #. */
  read(): string;
  /** `entry`: as a new entry of the history, which Back leaves again. */
  write(fragment: string, entry?: boolean): void;
  /** Called when the reader moves through the history; returns what ends that. */
  follow(onchange: () => void): () => void;
  /** A link that restores what is shown; null where there is none. */
  link(fragment: string): string | null;
}

export class PageAddress implements Address {
  /** `home`: what an address without a fragment leads to. */
  constructor(private readonly home = "") {}

  read(): string {
    return location.hash.slice(1) || this.home;
  }

  write(fragment: string, entry = false): void {
    const target = `#${fragment}`;
    if (entry) history.pushState(null, "", target);
    else history.replaceState(null, "", target);
  }

  follow(onchange: () => void): () => void {
    addEventListener("popstate", onchange); // a changed fragment too
    return () => removeEventListener("popstate", onchange);
  }

  link(fragment: string): string {
    return `${location.href.split("#")[0]}#${fragment}`;
  }
}

/** Of an app that shares its page with others. */
export class MemoryAddress implements Address {
  private fragment = "";

  read(): string {
    return this.fragment;
  }

  write(fragment: string): void {
    this.fragment = fragment;
  }

  follow(): () => void {
    return () => {};
  }

  link(): null {
    return null;
  }
}
