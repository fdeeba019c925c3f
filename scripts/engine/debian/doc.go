// Package debian fetches pinned Debian packages without touching the system: it reads and checks engine.lock, finds a
// mirror in the machine's apt configuration, lets apt resolve and download inside a private state folder, and unpacks
// the result with dpkg-deb. It never installs anything and never needs root.
//
// scripts/engine is its only caller. One Fetcher serves one goroutine; a file lock in the cache keeps several build
// trees that share it apart.
package debian
