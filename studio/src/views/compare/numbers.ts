/** What stands in a field, as a whole number from 0 to `most`. */
export function wholeNumber(text: string, most: number): number {
  const number = Math.floor(Number(text));
  return Number.isFinite(number) ? Math.max(0, Math.min(most, number)) : 0;
}
