// Arrow keys over a row of things, of which one has the focus.

/** Where a key leads from `current` among `count`; null: it leads nowhere. */
export function keyTarget(event: KeyboardEvent, current: number, count: number): number | null {
  if (event.altKey || event.ctrlKey || event.metaKey || count === 0) return null;
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
