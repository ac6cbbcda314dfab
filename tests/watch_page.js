// A browser that test_watch.py leads: reads steps (JSON) from stdin, one after the other
// opens, waits, clicks, evaluates, takes pictures. Prints what was evaluated, as JSON, and
// what the console said that is an error.
const fs = require("fs");
const puppeteer = require("puppeteer-core");

async function main() {
  const plan = JSON.parse(fs.readFileSync(0, "utf8"));
  const args = ["--disable-gpu", "--hide-scrollbars", "--disable-background-networking"];
  if (plan.root) args.push("--no-sandbox");
  const browser = await puppeteer.launch({ executablePath: plan.browser, args });
  const found = {}, errors = [];
  try {
    const page = await browser.newPage();
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (said) => said.type() === "error" && errors.push(said.text()));
    await page.setViewport({ width: 1280, height: 900 });
    for (const [n, step] of plan.steps.entries()) {
      if (step.open) await page.goto(step.open, { waitUntil: "load" });
      if (step.sleep) await new Promise((done) => setTimeout(done, 1000 * step.sleep));
      if (step.wait)
        await page.waitForFunction(step.wait, { timeout: 1000 * (step.seconds || 60) }).catch(async (error) => {
          const says = await page.evaluate(() => document.body.innerText.replace(/\n+/g, " | "));
          throw new Error(`step ${n}, ${step.wait.split("\n").pop()}: ${error.message}; the page: ${says}`);
        });
      if (step.click) await page.click(step.click);
      if (step.name) found[step.name] = await page.evaluate(step.evaluate);
      if (step.shot) {
        const value = step.dark ? "dark" : "light";
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);
        await page.setViewport({ width: step.width, height: 900 });
        await new Promise((done) => setTimeout(done, 700));
        await page.screenshot({ path: step.shot, fullPage: true });
      }
    }
  } finally {
    await browser.close();
    console.log(JSON.stringify({ found, errors }));
  }
}

main().catch((error) => {
  console.error(error.message.split("\n")[0]);
  process.exit(1);
});
