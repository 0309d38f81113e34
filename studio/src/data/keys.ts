// Arrow keys over a row of things, of which one has the focus.

/** Whether a key is pressed alone. */
export function isPlain(event: KeyboardEvent): boolean {
  return !event.altKey && !event.ctrlKey && !event.metaKey;
}

/** Where a key leads from `current` among `count`; null: it leads nowhere. */
export function keyTarget(event: KeyboardEvent, current: number, count: number): number | null {
  if (!isPlain(event) || count === 0) return null;
  const targets: Readonly<Record<string, number>> = {
    ArrowLeft: current - 1,
    ArrowUp: current - 1,
    ArrowRight: current + 1,
    ArrowDown: current + 1,
    Home: 0,
    End: count - 1,
  };
  const target = targets[event.key];
  return target === undefined ? null : Math.max(0, Math.min(count - 1, target));
}

/** The step that an arrow key alone takes in a grid; null: it is no arrow. */
export function arrowStep(event: KeyboardEvent): { readonly rows: number; readonly columns: number } | null {
  if (!isPlain(event)) return null;
  const steps: Readonly<Record<string, { rows: number; columns: number }>> = {
    ArrowUp: { rows: -1, columns: 0 },
    ArrowDown: { rows: 1, columns: 0 },
    ArrowLeft: { rows: 0, columns: -1 },
    ArrowRight: { rows: 0, columns: 1 },
  };
  return steps[event.key] ?? null;
}
