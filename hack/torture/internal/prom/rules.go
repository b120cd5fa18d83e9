package prom

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"
)

// Rule is an alert.
type Rule struct {
	Alert string `json:"alert"`
	Expr  string `json:"expr"`
	For   string `json:"for,omitempty"`
	Annotated
}

// Annotated is what people are told.
type Annotated struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rules are the alerts that are shipped.
type Rules struct{ groups []group }

// ReadRules reads deploy/components/prometheus/rules.yaml of a checkout.
func ReadRules(root string) (*Rules, error) {
	content, err := os.ReadFile(filepath.Join(root, "deploy/components/prometheus/rules.yaml"))
	if err != nil {
		return nil, err
	}
	var resource struct {
		Spec struct {
			Groups []group `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &resource); err != nil {
		return nil, err
	}
	return &Rules{resource.Spec.Groups}, nil
}

// Alerts are all alerts, in their order.
func (r *Rules) Alerts() (list []Rule) {
	for _, g := range r.groups {
		list = append(list, g.Rules...)
	}
	return list
}

// File is the content of a file for Prometheus itself, with every time divided by a factor.
func (r *Rules) File(factor int) ([]byte, error) {
	scaled := struct {
		Groups []group `json:"groups"`
	}{}
	for _, g := range r.groups {
		out := group{Name: g.Name}
		for _, one := range g.Rules {
			one.Expr, one.For = Faster(one.Expr, factor), Faster(one.For, factor)
			out.Rules = append(out.Rules, one)
		}
		scaled.Groups = append(scaled.Groups, out)
	}
	return yaml.Marshal(scaled)
}

// span is a duration as expressions have it.
var span = regexp.MustCompile(`\b(\d+)(s|m|h|d)\b`)

// minutes are a difference of times.
var minutes = regexp.MustCompile(`\b(\d+) \* 60\b`)

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour,
	"d": 24 * time.Hour}

// Faster divides all times in an expression: the ranges of its vectors, and minutes that it
// multiplies by 60.
func Faster(expr string, factor int) string {
	expr = minutes.ReplaceAllString(expr, fmt.Sprintf("$1 * %g", 60/float64(factor)))
	return span.ReplaceAllStringFunc(expr, func(text string) string {
		parts := span.FindStringSubmatch(text)
		n, _ := strconv.Atoi(parts[1]) // it has digits only
		return fmt.Sprintf("%dms", (time.Duration(n) * units[parts[2]] /
			time.Duration(factor)).Milliseconds())
	})
}
