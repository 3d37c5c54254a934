"""Somebody at the page of `tierkv serve`, in headless Chromium: run by serve_browser_test.py with the address of a server and a
folder for screenshots. Prints JSON: what was seen. Arguments: ADDRESS FOLDER MESSAGE..."""

import json
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

address, folder, *messages = sys.argv[1:]
FLAGS = ("--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
         "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars").split()


def start(profile):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def look_like(driver, width, height, scheme):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
    time.sleep(0.6)


def page(driver):
    """Everything that shows: texts of the parts that change, and whether something is wider than the window."""
    return driver.execute_script("""
      const text = (id) => document.getElementById(id).innerText;
      const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest(".scroll, svg")).map((e) => e.tagName + "#" + e.id);
      const lines = [...document.querySelectorAll("#talk p")];
      const overlaps = lines.filter((e, i) => e.scrollHeight > e.clientHeight + 1 ||
        (i && e.getBoundingClientRect().top < lines[i - 1].getBoundingClientRect().bottom)).length;
      return { overlaps, talk: text("talk"), tiers: text("tiers"), ours: text("ours"), speed: text("speed"), list: text("list"),
        states: text("states"), quality: text("quality"), against: text("against"), timing: text("timing"), title: document.title,
        history: document.querySelectorAll("#history polygon").length, back: getComputedStyle(document.body).backgroundColor,
        scrolls: document.documentElement.scrollWidth > innerWidth, wide, width: innerWidth };""")


def say(driver, message, keyboard):
    """One turn; the answer is there when the button says Send again."""
    driver.find_element(By.ID, "text").send_keys(message)
    if keyboard:
        driver.find_element(By.ID, "text").send_keys(Keys.ENTER)
    else:
        driver.find_element(By.ID, "send").click()
    WebDriverWait(driver, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#talk p.assistant"))
    WebDriverWait(driver, 180).until(lambda d: d.find_element(By.ID, "send").text == "Send")


def requests(driver):
    """Whom the page asked."""
    asked = set()
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.add(message["params"]["request"]["url"])
    return sorted(asked)


def main():
    with tempfile.TemporaryDirectory() as profile:
        driver = start(profile)
        try:
            driver.get("about:blank")
            driver.get_log("performance")  # what Chromium's own first page asked for
            driver.get(address)
            WebDriverWait(driver, 60).until(lambda d: "tierkv" in d.title and d.title != "tierkv")
            look_like(driver, 1280, 900, "light")
            before = page(driver)
            for i, message in enumerate(messages):
                say(driver, message, keyboard=i % 2 == 0)
            # The figures follow within their second.
            WebDriverWait(driver, 20).until(lambda d: page(d)["tiers"] != before["tiers"])
            time.sleep(1.5)
            light = page(driver)
            driver.save_screenshot(str(Path(folder) / "light.png"))
            look_like(driver, 1280, 900, "dark")
            dark = page(driver)
            driver.save_screenshot(str(Path(folder) / "dark.png"))
            look_like(driver, 360, 740, "light")
            phone = page(driver)
            driver.save_screenshot(str(Path(folder) / "phone.png"))
            # An answer that is stopped by the keyboard, and a fresh start.
            look_like(driver, 1280, 900, "light")
            driver.find_element(By.ID, "text").send_keys("go on for ever" + Keys.ENTER)
            time.sleep(0.2)
            driver.find_element(By.ID, "text").send_keys(Keys.ESCAPE)
            WebDriverWait(driver, 60).until(lambda d: d.find_element(By.ID, "send").text == "Send")
            driver.find_element(By.ID, "fresh").click()
            order = []
            for _ in range(6):
                driver.switch_to.active_element.send_keys(Keys.TAB)
                order.append(driver.switch_to.active_element.get_attribute("id"))
            print(json.dumps({
                "before": before, "light": light, "dark": dark, "phone": phone, "fresh": page(driver), "tabs": order,
                "console": [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"],
                "requests": requests(driver),
            }))  # fmt: skip
        finally:
            driver.quit()


main()
