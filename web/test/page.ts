// What the tests of the browser run in a page.

import { Site, tests } from "./suite.ts";

Object.assign(globalThis, {
  names: Object.keys(tests),
  async run(name: string, url: string, limitedUrl: string) {
    const site = new Site(url, limitedUrl);
    try {
      await tests[name]?.(site);
    } finally {
      site.close();
    }
  },
});
