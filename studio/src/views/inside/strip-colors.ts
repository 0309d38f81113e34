// The colours of a strip's cells: signed numbers in steps from zero, attention on one scale from 0 to 1.

export type StripScale = "signed" | "attention";

/** Where a signed number's colour grows stronger, in units of the strip's root mean square. */
export const STEPS = [0.25, 0.75, 1.5, 3] as const;

export type ReadVariable = (name: string) => string;

/** The colour of each cell, by the variables of the stylesheet. */
export function cellColors(cells: readonly (number | null)[], rms: number, scale: StripScale, variable: ReadVariable): string[] {
  return scale === "signed" ? signedColors(cells, rms, variable) : attentionColors(cells, variable);
}

function signedColors(cells: readonly (number | null)[], rms: number, variable: ReadVariable): string[] {
  const zero = variable("--paper");
  const above = STEPS.map((_, step) => variable(`--positive-${step + 1}`));
  const below = STEPS.map((_, step) => variable(`--negative-${step + 1}`));
  return cells.map((cell) => {
    const step = STEPS.filter((threshold) => Math.abs(cell ?? 0) >= threshold * rms).length - 1;
    return (rms > 0 && step >= 0 ? ((cell ?? 0) > 0 ? above : below)[step] : undefined) ?? zero;
  });
}

function attentionColors(cells: readonly (number | null)[], variable: ReadVariable): string[] {
  const stops = [0, 1, 2, 3, 4].map((stop) => channels(variable(`--attention-${stop}`)));
  return cells.map((cell) => {
    const place = Math.max(0, Math.min(1, cell ?? 0)) * (stops.length - 1);
    const lower = stops[Math.floor(place)] ?? [0, 0, 0];
    const upper = stops[Math.ceil(place)] ?? lower;
    const mixed = lower.map((channel, number) => Math.round(channel + ((upper[number] ?? channel) - channel) * (place % 1)));
    return `rgb(${mixed.join(" ")})`;
  });
}

function channels(hex: string): number[] {
  return [1, 3, 5].map((start) => parseInt(hex.trim().slice(start, start + 2), 16) || 0);
}
