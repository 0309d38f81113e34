// Numbers as bars on an axis that is the same for all of them.
import { percent } from "./format";

export interface Bar {
  readonly label: string;
  readonly note?: string;
  readonly value: number;
}

export interface BarAxis {
  readonly least: number;
  readonly most: number;
  readonly ticks: readonly [least: string, middle: string, most: string];
  /** A value, printed beside its bar. */
  readonly print: (value: number) => string;
}

/** Of probabilities. */
export const PERCENT_AXIS: BarAxis = { least: 0, most: 1, ticks: ["0", "50", "100 %"], print: percent };

/** Of similarities, from the opposite to the same: cosines reach 1, products more. */
export function similarityAxis(values: readonly number[]): BarAxis {
  const reach = Math.max(1, ...values.map(Math.abs));
  const end = reach.toFixed(reach > 1 ? 1 : 0);
  return {
    least: -reach,
    most: reach,
    ticks: [`−${end}, opposite`, "0", `${end}, the same`],
    print: (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`,
  };
}
