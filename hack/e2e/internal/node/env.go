package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// environment are a container's variables, in order.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) list() []string {
	list := make([]string, 0, len(e.names))
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}

// environment resolves what the container's variables refer to.
func (p *pod) environment(ctx context.Context, c corev1.Container) (*environment, error) {
	e := &environment{values: map[string]string{}}
	for _, variable := range p.node.Env {
		name, value, _ := strings.Cut(variable, "=")
		e.set(name, value)
	}
	if len(c.EnvFrom) > 0 {
		return nil, fmt.Errorf("envFrom is not supported here")
	}
	for _, variable := range c.Env {
		value := expand(variable.Value, e)
		if from := variable.ValueFrom; from != nil {
			var err error
			if value, err = p.resolve(ctx, from); err != nil {
				return nil, fmt.Errorf("%s: %w", variable.Name, err)
			}
		}
		e.set(variable.Name, value)
	}
	return e, nil
}

func (p *pod) resolve(ctx context.Context, from *corev1.EnvVarSource) (string, error) {
	core, namespace := p.node.Client.CoreV1(), p.object.Namespace
	switch {
	case from.FieldRef != nil:
		return p.field(from.FieldRef.FieldPath)
	case from.SecretKeyRef != nil:
		secret, err := core.Secrets(namespace).Get(ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		value, ok := secret.Data[from.SecretKeyRef.Key]
		if !ok {
			return "", fmt.Errorf("secret %s has no key %s", secret.Name, from.SecretKeyRef.Key)
		}
		return string(value), nil
	case from.ConfigMapKeyRef != nil:
		config, err := core.ConfigMaps(namespace).Get(ctx, from.ConfigMapKeyRef.Name,
			metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		value, ok := config.Data[from.ConfigMapKeyRef.Key]
		if !ok {
			return "", fmt.Errorf("config map %s has no key %s", config.Name,
				from.ConfigMapKeyRef.Key)
		}
		return value, nil
	}
	return "", fmt.Errorf("this source of a variable is not supported here")
}

// field is the downward API.
func (p *pod) field(path string) (string, error) {
	switch path {
	case "metadata.name":
		return p.object.Name, nil
	case "metadata.namespace":
		return p.object.Namespace, nil
	case "metadata.uid":
		return string(p.object.UID), nil
	case "spec.nodeName":
		return Name, nil
	case "spec.serviceAccountName":
		return p.object.Spec.ServiceAccountName, nil
	case "status.podIP":
		return p.ip, nil
	}
	return "", fmt.Errorf("the field %s is not supported here", path)
}

// expand replaces $(NAME) by the variable, if there is one, and $$ by $.
func expand(s string, e *environment) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			b.WriteByte('$')
			s = rest
			continue
		}
		if name, rest, ok := strings.Cut(strings.TrimPrefix(after, "("), ")"); ok &&
			strings.HasPrefix(after, "(") {
			if value, known := e.values[name]; known {
				b.WriteString(value)
				s = rest
				continue
			}
		}
		b.WriteByte('$')
		s = after
	}
}

func expandAll(list []string, e *environment) []string {
	expanded := make([]string, len(list))
	for i, s := range list {
		expanded[i] = expand(s, e)
	}
	return expanded
}
