// Package api is what hearth's HTTP adapters share: the models they talk to, the decoding of request bodies with errors
// that name the field, the one error writer, and the writer of server-sent events.
//
// The adapters (server/openai, server/native) import it; server puts them together. It knows no route. Everything here
// is safe for concurrent use by different requests, except where a type says that it belongs to one request.
package api
