package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// prober asks a container, as a kubelet does: without a look at the certificate, and on a new
// connection each time.
var prober = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	DisableKeepAlives: true}

// probe makes the probes of a container until ctx ends: the startup probe first, then the others.
// It closes dead when the container is to be started again.
func (p *pod) probe(ctx context.Context, dead chan<- struct{}) {
	c := p.object.Spec.Containers[0]
	var once sync.Once
	die := func() { once.Do(func() { close(dead) }) }
	if c.StartupProbe != nil {
		started := false
		p.repeat(ctx, c.StartupProbe, func(ok bool) bool {
			if started = ok; !ok {
				die()
			}
			return false
		})
		if !started {
			return
		}
	}
	p.change(func(s *containerStatus) { s.started = true })
	var both sync.WaitGroup
	defer both.Wait()
	if c.LivenessProbe != nil {
		both.Go(func() {
			p.repeat(ctx, c.LivenessProbe, func(ok bool) bool {
				if !ok {
					die()
				}
				return ok
			})
		})
	}
	if c.ReadinessProbe == nil {
		p.change(func(s *containerStatus) { s.ready = true })
		return
	}
	both.Go(func() {
		p.repeat(ctx, c.ReadinessProbe, func(ok bool) bool {
			p.change(func(s *containerStatus) { s.ready = ok })
			return true
		})
	})
}

// repeat makes a probe again and again until ctx ends. It calls result when the threshold of
// successes or failures is reached, and again when that changes, until result returns false.
func (p *pod) repeat(ctx context.Context, probe *corev1.Probe, result func(ok bool) bool) {
	if !pause(ctx, time.Duration(probe.InitialDelaySeconds)*time.Second) {
		return
	}
	var state *bool
	for row, last := int32(0), false; ; {
		ok := p.ask(ctx, probe) == nil
		if ctx.Err() != nil {
			return
		}
		if row == 0 || ok != last {
			row, last = 0, ok
		}
		row++
		threshold := probe.FailureThreshold
		if ok {
			threshold = probe.SuccessThreshold
		}
		if row >= threshold && (state == nil || *state != ok) {
			state = &ok
			if !result(ok) {
				return
			}
		}
		if !pause(ctx, time.Duration(probe.PeriodSeconds)*time.Second) {
			return
		}
	}
}

// pause waits, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pod) ask(ctx context.Context, probe *corev1.Probe) error {
	get := probe.HTTPGet
	if get == nil {
		return fmt.Errorf("only probes by HTTP are supported here")
	}
	port, err := containerPort(p.object.Spec.Containers[0], get.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	scheme := "http"
	if get.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s%s", scheme,
		net.JoinHostPort(p.ip, strconv.Itoa(int(port))), get.Path), nil)
	if err != nil {
		return err
	}
	response, err := prober.RoundTrip(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("%s answers %s", get.Path, response.Status)
	}
	return nil
}

// containerPort finds a port by its number or name.
func containerPort(c corev1.Container, port intstr.IntOrString) (int32, error) {
	if port.Type == intstr.Int {
		return port.IntVal, nil
	}
	for _, known := range c.Ports {
		if known.Name == port.StrVal {
			return known.ContainerPort, nil
		}
	}
	return 0, fmt.Errorf("the container has no port %q", port.StrVal)
}
