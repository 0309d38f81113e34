import { vitePreprocess } from "@sveltejs/vite-plugin-svelte";

export default {
  preprocess: vitePreprocess(),
  compilerOptions: {
    cssHash: ({ hash, css }) => `s-${hash(css)}`, // of the content, not of the path: a build elsewhere gives the same bytes
  },
};
