"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rollout-data").textContent);
  const button = document.getElementById("play");
  const slider = document.getElementById("seek");
  const clock = document.getElementById("clock");
  const colours = { imagined: "#0072b2", real: "#d55e00" };
  const sides = ["imagined", "real"].map((name) => ({
    name, ...data[name], canvas: document.getElementById(`canvas-${name}`), label: document.getElementById(`state-${name}`), image: null,
  }));
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const hold = Math.max(1, Math.round(data.fps)); // the last frame stays for a second before the loop starts again
  let frame = 0, playing = false, last = 0;

  const longest = Math.max(sides[0].steps, sides[1].steps);
  const stepOf = (index) => Math.min(index * data.every, longest);
  const number = (x) => Math.abs(x) >= 100 || Number.isInteger(x) ? Math.round(x).toString() : x.toPrecision(3);
  const minus = (s) => s.replace("-", "\u2212");

  function fit(side, ratio) {
    const width = side.canvas.clientWidth, dpr = window.devicePixelRatio || 1;
    const w = Math.round(width * dpr), h = Math.round(width * ratio * dpr);
    if (side.canvas.width !== w || side.canvas.height !== h) { side.canvas.width = w; side.canvas.height = h; }
    const ctx = side.canvas.getContext("2d");
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, width, width * ratio);
    return [ctx, width, width * ratio];
  }

  function drawFrame(side, index) {
    const [ctx, width, height] = fit(side, side.height / side.width);
    if (!side.image) return;
    const i = Math.min(index, side.count - 1);
    ctx.imageSmoothingQuality = "high";
    ctx.drawImage(side.image, (i % side.columns) * side.width, Math.floor(i / side.columns) * side.height,
      side.width, side.height, 0, 0, width, height);
    if (stepOf(index) > side.steps) { ctx.fillStyle = "rgba(255,255,255,.55)"; ctx.fillRect(0, 0, width, height); }
  }

  function drawTraces(side, index) {
    const rows = data.names.length, ratio = Math.min(1.1, Math.max(0.45, 0.155 * rows));
    const [ctx, width, height] = fit(side, ratio);
    const pad = 8, band = height / rows, margin = width - 2 * pad;
    ctx.font = "13px system-ui, sans-serif";
    data.names.forEach((name, row) => {
      const [low, high] = data.range[row], top = row * band + 20, room = band - 26;
      const x = (i) => pad + (Math.min(i * data.every, side.steps) / longest) * margin;
      const y = (v) => top + room * (1 - (high > low ? (v - low) / (high - low) : 0.5));
      ctx.fillStyle = "#4b5563";
      ctx.fillText(name, pad, row * band + 14);
      if (row) { ctx.fillStyle = "#e5e7eb"; ctx.fillRect(0, row * band, width, 1); }
      const values = side.traces[row], upto = Math.min(index, values.length - 1);
      ctx.strokeStyle = ctx.fillStyle = colours[side.name];
      ctx.lineWidth = 2;
      ctx.beginPath();
      for (let i = 0; i <= upto; i++) ctx.lineTo(x(i), y(values[i]));
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x(upto), y(values[upto]), 4, 0, 7);
      ctx.fill();
    });
  }

  function draw() {
    const index = Math.min(frame, data.frames - 1), step = stepOf(index);
    for (const side of sides) {
      (data.kind === "frames" ? drawFrame : drawTraces)(side, index);
      const parts = [];
      if (step >= side.steps) parts.push(`${side.end || "ends"} at step ${side.steps}`);
      if (side.total) parts.push(`return ${minus(number(side.total[Math.min(index, side.total.length - 1)]))}`);
      side.label.textContent = parts.join(" · ");
    }
    slider.value = String(index);
    slider.setAttribute("aria-valuetext", `step ${step}`);
    clock.textContent = `step ${step} of ${longest}`;
  }

  function tick(now) {
    if (!playing) return;
    if (now - last >= 1000 / data.fps) {
      last = now;
      frame = (frame + 1) % (data.frames + hold);
      draw();
    }
    requestAnimationFrame(tick);
  }

  function play(on) {
    if (on && !playing) { playing = true; last = 0; requestAnimationFrame(tick); }
    playing = on;
    button.textContent = on ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(on));
  }

  button.addEventListener("click", () => play(!playing));
  slider.addEventListener("input", () => { play(false); frame = Number(slider.value); draw(); });
  addEventListener("resize", draw);
  calm.addEventListener("change", () => { if (calm.matches) play(false); });

  if (data.kind === "frames") {
    for (const side of sides) {
      const image = new Image();
      image.onload = () => { side.image = image; draw(); };
      image.src = side.sheet;
    }
  }
  frame = Math.floor(data.frames / 3); // a still that shows more than the common start
  draw();
  // No motion unasked where the reader wants none; nor in print.
  play(!calm.matches);
})();
