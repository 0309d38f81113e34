// Data that is asked for while a view is open: being read, there, or not to be had.
import { SourceError } from "./source";

export type RemoteState<T> =
  | { readonly kind: "idle" }
  | { readonly kind: "reading" }
  | { readonly kind: "ready"; readonly value: T }
  | { readonly kind: "failed"; readonly message: string; readonly notRecorded: boolean };

export class Remote<T> {
  state = $state.raw<RemoteState<T>>({ kind: "idle" });
  /** The last that was read; it stays while the next is on its way. */
  value = $state.raw<T | null>(null);
  private latest = 0;

  /** Of several calls the last one counts, in whatever order they are answered. */
  async read(work: () => Promise<T>): Promise<void> {
    const number = ++this.latest;
    this.state = { kind: "reading" };
    try {
      const value = await work();
      if (number !== this.latest) return;
      this.value = value;
      this.state = { kind: "ready", value };
    } catch (error) {
      if (number !== this.latest) return;
      this.value = null;
      const message = error instanceof Error ? error.message : String(error);
      this.state = { kind: "failed", message, notRecorded: error instanceof SourceError && error.kind === "not recorded" };
    }
  }

  /** Forget what was read, and what is on its way. */
  clear(): void {
    this.latest++;
    this.value = null;
    this.state = { kind: "idle" };
  }
}
