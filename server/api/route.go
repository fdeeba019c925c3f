package api

import "github.com/gin-gonic/gin"

// Route is a handler and the paths it serves. A handler decodes, validates, makes one domain call and encodes; the
// error that it returns is logged and, when nothing was sent yet, written. GET routes answer HEAD too.
type Route struct {
	Method  string
	Paths   []string
	Handler func(c *gin.Context) error
}

// WithV1 lists path both with and without the prefix /v1: users enter base URLs both ways.
func WithV1(paths ...string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, "/v1"+p, p)
	}
	return out
}
