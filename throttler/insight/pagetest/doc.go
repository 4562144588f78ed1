// Package pagetest tests the page of insight.Handler in a real browser, headless Chromium: real servers, real decisions. It is a
// module of its own, so that applications don't get the browser's driver.
package pagetest
