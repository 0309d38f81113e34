import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { savedPage } from "./saved-page.plugin.js";

const server = "http://127.0.0.1:8000"; // where `glass serve` listens, for `npm run dev`

export default defineConfig({
  base: "./",
  plugins: [svelte(), savedPage()],
  build: {
    outDir: "../src/glassformer/studio/static",
    emptyOutDir: true,
    assetsDir: "studio",
    assetsInlineLimit: 0, // the page's content security policy allows no data: URLs
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/glass": server, "/v1": server } },
});
