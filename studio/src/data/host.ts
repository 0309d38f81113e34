// What the app lives in: a whole page, or one element of somebody else's. Components reach it here and touch no global.
import { getContext, setContext } from "svelte";
import type { Address } from "./address";

export interface Host {
  readonly address: Address;
  /** Where keys are heard and files are dropped. */
  readonly events: EventTarget;
  /** Carries the theme. */
  readonly element: HTMLElement;
  /** The server's address; undefined where there is none. */
  readonly server?: string;
  /** Whether the surroundings are dark; undefined: as the system says. */
  readonly dark?: boolean;
}

export const DEFAULT_SERVER = "http://127.0.0.1:8000/"; // where `glass serve` listens

const HOST = Symbol("host");

export function setHost(host: Host): void {
  setContext(HOST, host);
}

export function getHost(): Host {
  return getContext<Host>(HOST);
}
