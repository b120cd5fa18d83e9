package server

import (
	"bytes"
	"io"
	"os"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// logStreams are where the log goes. At verbosity 0, lines in text that tell nothing to be done are
// left out.
func (s *Server) logStreams() *logsapi.LoggingOptions {
	infos := s.logging.Verbosity > 0 || s.logging.Format != logsapi.DefaultLogFormat
	return &logsapi.LoggingOptions{ErrorStream: quiet{os.Stderr, infos},
		InfoStream: quiet{os.Stdout, infos}}
}

// skipped is what upstream's server of definitions warns of at each start: it knows a version of
// its own group that nobody serves any more.
var skipped = []byte("Skipping API apiextensions.k8s.io/v1beta1 because it has no resources.")

// quiet drops the one warning that is always there and, without infos, what klog writes as INFO.
// Each write is a whole message. In text it begins with the first letter of its severity.
type quiet struct {
	io.Writer
	infos bool
}

func (w quiet) Write(message []byte) (int, error) {
	if !w.infos && len(message) > 0 && message[0] == 'I' || bytes.Contains(message, skipped) {
		return len(message), nil
	}
	return w.Writer.Write(message)
}
