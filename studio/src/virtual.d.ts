declare module "virtual:saved-page" {
  /** Where the template of a saved page is; null while developing, when there is no build. */
  const address: string | null;
  export default address;
}
