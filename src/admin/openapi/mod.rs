//! The description of the API: `/api/v1/`, an index for people, and `/api/v1/openapi.json` for tools.
//!
//! Both are made from [`table::ENDPOINTS`], and so are the routes: none can be forgotten.

pub(super) mod table;

use axum::Json;
use serde_json::{Map, Value, json};

use self::table::{ENDPOINTS, Endpoint, Parameter};
use super::assets;

pub(super) async fn index() -> Json<Value> {
    let endpoints = ENDPOINTS.iter().map(|endpoint| {
        let (method, path) = (endpoint.method.to_uppercase(), format!("{BASE}{}", endpoint.path));
        json!({ "method": method, "path": path, "summary": endpoint.summary })
    });
    Json(json!({
        "api": "v1",
        "endpoints": endpoints.collect::<Value>(),
        "page": assets::fingerprint(),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

pub(super) async fn document() -> Json<Value> {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(format!("{BASE}{}", endpoint.path)).or_insert_with(|| json!({}));
        path[endpoint.method] = operation(endpoint);
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tokenway admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "State and control of one gateway. Durations are seconds. Each path is also served without \
                `/v1`, as it was before the API had a version.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "`admin.token`, or `admin.read_token` for GET, where they are set" },
            },
            "schemas": { "Error": error_schema() },
            "responses": {
                "Error": {
                    "description": "What is wrong, in words",
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
                },
            },
        },
    }))
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut parameters: Vec<Value> =
        endpoint.parameters.iter().map(|it| parameter(it, endpoint.path)).collect();
    let is_write = endpoint.method != "get";
    if is_write {
        parameters.push(json!({
            "name": "x-tokenway-admin",
            "in": "header",
            "required": true,
            "schema": { "const": "1" },
            "description": "No form of a web page can set it: keeps other pages of a browser from acting here",
        }));
    }
    let schema = match endpoint.content_type {
        "application/json" => json!({ "type": "object" }),
        _ => json!({ "type": "string" }),
    };
    let mut operation = json!({
        "operationId": format!("{}{}", endpoint.method, endpoint.path.replace(['/', '-', '.', '{', '}'], "_")),
        "summary": endpoint.summary,
        "description": endpoint.description,
        "parameters": parameters,
        "responses": {
            endpoint.status: {
                "description": endpoint.summary,
                "content": { endpoint.content_type: { "schema": schema } },
            },
            "default": { "$ref": "#/components/responses/Error" },
        },
    });
    if !endpoint.body.is_empty() {
        operation["requestBody"] = json!({
            "description": endpoint.body,
            "content": { "application/json": { "schema": { "type": "object" } } },
        });
    }
    operation
}

fn parameter(Parameter { name, description, kind, values }: &Parameter, path: &str) -> Value {
    let is_path = path.contains(&format!("{{{name}}}"));
    let mut schema = json!({ "type": kind });
    if !values.is_empty() {
        schema["enum"] = json!(values);
    }
    json!({
        "name": name,
        "in": if is_path { "path" } else { "query" },
        "required": is_path,
        "description": description,
        "schema": schema,
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": { "code": { "type": "string" }, "message": { "type": "string" } },
            },
        },
    })
}

/// Path of the API.
pub(super) const BASE: &str = "/api/v1";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parameters_of_a_path_are_described_and_names_are_unique() {
        let Json(document) = document().await;
        let mut names = std::collections::BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(names.insert(operation["operationId"].to_string()), "{method} {path}");
                let in_path = |p: &&Value| p["in"] == "path";
                let described = operation["parameters"].as_array().unwrap().iter().filter(in_path).count();
                assert_eq!(described, path.matches('{').count(), "{method} {path}");
                let has_header = operation["parameters"].to_string().contains("x-tokenway-admin");
                assert_eq!(has_header, method == "post", "{method} {path}");
            }
        }
    }
}
