// Where the lines of a chart go: an axis over some numbers, with ticks at round ones.

export interface ChartPoint {
  readonly x: number;
  readonly y: number;
}

export interface ChartLine {
  readonly name: string;
  readonly points: readonly ChartPoint[];
  readonly marked?: boolean; // each point is a measurement of its own
}

export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly ticks: readonly number[];
}

/** `most`: about how many ticks. */
export function scale(values: readonly number[], most: number, fromZero = false): Scale {
  let low = values.length ? Math.min(...values) : 0;
  let high = values.length ? Math.max(...values) : 1;
  if (fromZero) low = Math.min(0, low);
  if (low === high) {
    const room = Math.abs(low) / 10 || 1;
    low -= room;
    high += room;
  }
  const step = roundStep((high - low) / most);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return { low, high, ticks: Array.from({ length: last - first + 1 }, (_, number) => Number(((first + number) * step).toPrecision(12))) };
}

/** The smallest of 1, 2 and 5 times a power of ten that is no less. */
function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
}

/** From 0 to 1. */
export function along({ low, high }: Scale, value: number): number {
  return (value - low) / (high - low);
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function tickText(value: number): string {
  return Number.isInteger(value) ? WHOLE.format(value) : String(Number(value.toPrecision(4)));
}

/** The point of a line that is nearest to a place. */
export function nearest({ points }: ChartLine, x: number): ChartPoint | null {
  let best: ChartPoint | null = null;
  for (const point of points) if (best === null || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
  return best;
}
