// What the server does, once a second while somebody looks.
let before = null;

async function status() {
  if (document.hidden) return;
  try {
    const response = await fetch("/slots", { headers: headers() });
    if (!response.ok) {
      $("running").textContent = response.status === 401 ? "needs a key" : "not ready";
      return;
    }
    const now = await response.json();
    $("model").textContent = now.model;
    $("running").textContent = `${now.running} of ${now.slots}`;
    $("waiting").textContent = `${now.waiting} of ${now.queue}`;
    $("cache").textContent = now.cache_blocks ? `${Math.round((100 * now.cache_blocks_used) / now.cache_blocks)} %` : "–";
    const time = performance.now();
    if (before) {
      const speed = ((now.generated_tokens - before.tokens) / (time - before.time)) * 1000;
      $("speed").textContent = `${speed.toFixed(1)} tokens/s`;
    }
    before = { tokens: now.generated_tokens, time };
  } catch {
    $("running").textContent = "gone";
  }
}

buttons();
status();
setInterval(status, 1000);
document.documentElement.dataset.ready = "true";
